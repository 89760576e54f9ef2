package sbxrun_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
)

// The examples run on hosts without cgroups for this user, too.
var anywhere = sbxrun.Options{Degrade: policy.LayerCgroup}

func Example() {
	cmd := sbxrun.Command("sh", "-c", "echo hello; touch /usr/x")
	cmd.Options = anywhere
	out, err := cmd.Output()
	var exit *sbxrun.ExitError
	if errors.As(err, &exit) {
		fmt.Printf("%s%s%v, %v\n", out, exit.Stderr, err, cmd.Result.Reason)
	} else if err != nil {
		log.Fatal(err, sbxrun.HintOf(err))
	}
	// Output:
	// hello
	// touch: cannot touch '/usr/x': Read-only file system
	// exit status 1, exit
}

func ExampleCmd_stdin() {
	cmd := sbxrun.Command("tr", "a-z", "A-Z")
	cmd.Options = anywhere
	cmd.Stdin, cmd.Stdout = strings.NewReader("from a reader\n"), os.Stdout
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
	}
	// Output: FROM A READER
}

func ExampleCmd_limits() {
	limit := 200 * time.Millisecond
	cmd := sbxrun.Command("sleep", "60")
	cmd.Options = anywhere
	cmd.Options.Timeout = &limit
	err := cmd.Run()
	fmt.Println(err, cmd.Result.Reason)
	// Output: the time limit ended the command timeout
}

func ExampleCommandContext() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	cmd := sbxrun.CommandContext(ctx, "sleep", "60")
	cmd.Options = anywhere
	err := cmd.Run()
	fmt.Println(errors.Is(err, context.DeadlineExceeded), cmd.Result.Reason)
	// Output: true canceled
}

func ExampleCmd_CombinedOutput() {
	cmd := sbxrun.Command("sh", "-c", "echo one; echo two >&2; echo three")
	cmd.Options = anywhere
	out, err := cmd.CombinedOutput()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// one
	// two
	// three
	// <nil>
}

func ExampleOpen() {
	s, err := sbxrun.Open(context.Background(), anywhere)
	if err != nil {
		log.Fatal(err, sbxrun.HintOf(err))
	}
	defer s.Close()
	if err := s.Command("sh", "-c", "echo kept > /tmp/note").Run(); err != nil {
		fmt.Println(err)
	}
	out, err := s.Command("cat", "/tmp/note").Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// kept
	// <nil>
}

func ExampleNewPool() {
	ctx := context.Background()
	p, err := sbxrun.NewPool(ctx, anywhere, pool.Settings{MinSize: 1, TargetSize: 1})
	if err != nil {
		log.Fatal(err, sbxrun.HintOf(err))
	}
	defer p.Close()
	dir, err := os.MkdirTemp("", "workspace-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := p.Open(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	err = s.Command("sh", "-c", "echo made inside >file").Run()
	made, _ := os.ReadFile(dir + "/file")
	fmt.Printf("%s%v\n", made, err)
	// Output:
	// made inside
	// <nil>
}

func ExampleDoctor() {
	d, err := sbxrun.Doctor(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range d.Checks {
		if c.Group == "boundary" && c.State.String() != "yes" {
			fmt.Println(c.Name, c.Cause)
		}
	}
	if !d.Strict {
		log.Print(d.Error, d.Hint)
	}
	// Output:
}
