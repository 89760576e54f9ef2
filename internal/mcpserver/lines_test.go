//go:build linux

package mcpserver

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// spoken is what a client says, and what comes of it: the ids of messages that are
// taken, and the answers to the others.
func spoken(t testing.TB, in io.Reader) (taken []string, answers []string) {
	out, w := io.Pipe()
	l := &lines{r: io.NopCloser(in), w: w, gone: func() {}}
	l.Connect(t.Context())
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := bufio.NewReader(out)
		for {
			line, err := b.ReadString('\n')
			if err != nil {
				return
			}
			answers = append(answers, line)
		}
	}()
	for {
		m, err := l.Read(t.Context())
		if err != nil {
			break
		}
		if r, ok := m.(*jsonrpc.Request); ok {
			id, _ := json.Marshal(r.ID.Raw())
			taken = append(taken, string(id))
		}
	}
	l.Close()
	<-read
	return taken, answers
}

// TestLines: a line that is no message, or could be two, is answered, by its id if
// it has one, and those around it are taken (A14).
func TestLines(t *testing.T) {
	good := func(id int) string { return `{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,"method":"ping"}` }
	huge := strings.Repeat("x", maxMessage)
	for _, c := range []struct{ line, id, want string }{
		{`x`, "null", "-32700"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping"`, "7", "-32700"},
		{`[` + good(7) + `]`, "null", "a batch"},
		{`{"jsonrpc":"1.0","id":7,"method":"ping"}`, "7", "version tag"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call"}`, "7", `key \"method\" is there twice`},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","Method":"tools/call"}`, "7", `key \"Method\" is there twice`},
		{`{"jsonrpc":"2.0","params":{"name":"bash","name":"x"},"id":"a\"b","method":"tools/call"}`, `"a\"b"`, `key \"name\" is there twice`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":{"command":"true"},"arguments":{"command":"false"}}}`, "7", `key \"arguments\"`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":{"command":"true","comm\u0061nd":"false"}}}`, "7", `key \"command\"`},
		{`{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`, "null", `key \"id\"`},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", "id is neither"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}`, "7", "a call and an answer"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","error":null}`, "7", "a call and an answer"},
		{`{"jsonrpc":"2.0","method":"ping","res\u0075lt":1}`, "null", "a call and an answer"},
		{`{"jsonrpc":"2.0","ID":7,"method":"ping"}`, "null", "id is neither"},
		{`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "1.5", "whole number"},
		{`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, "9007199254740993", "whole number"},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.5}}`, "null", "requestId"},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}`, "null", "requestId"},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled"}`, "null", "requestId"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"progressToken":9007199254740993}}}`, "7", "progressToken"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"progressToken":[1]}}}`, "7", "progressToken"},
		{`{"jsonrpc":"2.0","id":{"x":1},"method":"ping"}`, "null", "invalid ID"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}}`, "7", "nested deeper"},
		{strings.Repeat("[", 100_000), "null", "nested deeper"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","params":"` + huge + `"}`, "7", "bytes, and"},
		{`{"method":"tools/call","params":{"name":"bash","arguments":{"command":"` + huge + `","id":5}},"jsonrpc":"2.0","id":7}`, "7", "bytes, and"},
		{`{"method":"tools/call","params":"` + huge + `\",\"id\":5`, "null", "bytes, and"},
		{huge + huge + huge, "null", "bytes, and"},
		{"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\"}", "7", "UTF-8"},
	} {
		taken, answers := spoken(t, strings.NewReader(good(1)+"\n\n \r\n"+c.line+"\r\n"+good(2)+"\n"+good(3)))
		if strings.Join(taken, " ") != "1 2 3" {
			t.Errorf("%.90s: the messages around it: %v", c.line, taken)
		}
		if len(answers) != 1 || !strings.HasPrefix(answers[0], `{"jsonrpc":"2.0","id":`+c.id+`,"error":{"code":-32`) || !strings.Contains(answers[0], c.want) || len(answers[0]) > 1000 {
			t.Errorf("%.90s: answers %.300q; want %s for id %s", c.line, answers, c.want, c.id)
		}
	}
}

// TestLinesUnread: what a client that does not read says is read all the same, to its end;
// and one that says much is given up.
func TestLinesUnread(t *testing.T) {
	for _, bad := range []int{10, maxRefusals + 10} {
		unread, w := io.Pipe()
		gone := make(chan struct{})
		in := strings.Repeat("x\n", bad) + `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"
		l := &lines{r: io.NopCloser(strings.NewReader(in)), w: w, gone: func() { close(gone) }}
		l.Connect(t.Context())
		m, err := l.Read(t.Context())
		if _, ok := m.(*jsonrpc.Request); ok != (bad < maxRefusals) {
			t.Errorf("after %d lines: %v, %v", bad, m, err)
		}
		select {
		case <-gone:
		case <-time.After(30 * time.Second):
			t.Errorf("after %d lines the end is not noticed", bad)
		}
		unread.Close()
		l.Close()
	}
}
