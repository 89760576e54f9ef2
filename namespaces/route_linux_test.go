package namespaces

import (
	"encoding/hex"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The bytes are those that ip(8) sends for "ip route add local default dev lo
// table local", with another protocol number.
func TestLocalDefault(t *testing.T) {
	want := "24000000" + "1800" + "0506" + "01000000" + "00000000" + // nlmsghdr
		"02000000" + "ff04fe02" + "00000000" + // rtmsg
		"0800" + "0400" + "01000000" // RTA_OIF 1
	if got := hex.EncodeToString(localDefault(unix.AF_INET)); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestAcknowledgement(t *testing.T) {
	ack := func(errno int32) []byte {
		b := make([]byte, unix.SizeofNlMsghdr+4+unix.SizeofNlMsghdr)
		b[4] = unix.NLMSG_ERROR
		b[16], b[17], b[18], b[19] = byte(errno), byte(errno>>8), byte(errno>>16), byte(errno>>24)
		return b
	}
	for _, tt := range []struct {
		in   []byte
		want error
	}{
		{ack(0), nil},
		{ack(-int32(syscall.EPERM)), syscall.EPERM},
		{ack(0)[:10], syscall.EPROTO},
		{nil, syscall.EPROTO},
		{make([]byte, 36), syscall.EPROTO}, // another kind of message
	} {
		if got := acknowledgement(tt.in); !errors.Is(got, tt.want) {
			t.Errorf("%x: %v, want %v", tt.in, got, tt.want)
		}
	}
}
