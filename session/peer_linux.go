package session

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// checkPeer refuses whoever is not the owner, or root. The socket's directory
// keeps others out already; this holds also if somebody opens that. A sandboxed
// command is its owner's too, and is refused for its user namespace, wherever the
// directory came into its sight.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	pidfd := -1
	if cerr := raw.Control(func(fd uintptr) {
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		// Linux 6.5. Before that there is the number alone.
		if pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); errors.Is(err, unix.ENOPROTOOPT) {
			pidfd, err = -1, nil
		}
	}); cerr != nil {
		return cerr
	}
	if err != nil {
		return err
	}
	if pidfd >= 0 {
		defer unix.Close(pidfd)
	}
	if int(cred.Uid) != os.Geteuid() && cred.Uid != 0 {
		return fmt.Errorf("user %d: %w", cred.Uid, unix.EACCES)
	}
	own, err := ownNamespace()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // without user namespaces there are no such sandboxes
	}
	if err != nil {
		return err
	}
	// Whoever connects and dies at once, and leaves the socket to a child, has none.
	peer, err := os.Readlink("/proc/" + strconv.Itoa(int(cred.Pid)) + "/ns/user")
	if errors.Is(err, unix.EACCES) && cred.Uid == 0 {
		return nil // root's, and a mere user may not look
	}
	if pidfd >= 0 && errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) {
		err = unix.ESRCH // and the number may be another's by now
	}
	if err != nil || peer != own {
		return fmt.Errorf("process %d is not known to be in the same user namespace: %w", cred.Pid, unix.EACCES)
	}
	return nil
}

// ownNamespace is the user namespace that this process is in; see namespaces(7).
var ownNamespace = sync.OnceValues(func() (string, error) { return os.Readlink("/proc/self/ns/user") })
