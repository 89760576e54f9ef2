//go:build unix

package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/internal/files"
	"github.com/sbxrun/sbxrun/internal/quote"
)

const (
	maxEntries  = 1000     // of a directory, in one result
	defaultRead = 64 << 10 // bytes
	maxRead     = 1 << 20  // bytes
	maxWrite    = 8 << 20  // bytes; the protocol's messages are bounded too
)

type listArguments struct {
	Path      string `json:"path,omitempty" jsonschema:"the directory; relative to where the session is, which is the default"`
	Offset    int    `json:"offset,omitempty" jsonschema:"how many entries to pass over, by name"`
	SessionID string `json:"session_id,omitempty" jsonschema:"the session; without it the connection's own"`
}

type entry struct {
	Name    string `json:"name"`
	Type    string `json:"type" jsonschema:"file, dir, symlink, fifo, socket or device"`
	Size    int64  `json:"size"`
	Mode    string `json:"mode" jsonschema:"permissions, in octal"`
	ModTime string `json:"mod_time"`
	Target  string `json:"target,omitempty" jsonschema:"what a symbolic link leads to"`
}

type listResult struct {
	Path    string  `json:"path"`
	Entries []entry `json:"entries"`
	Total   int     `json:"total"`
	More    bool    `json:"more" jsonschema:"there are more: call again with an offset"`
}

type readArguments struct {
	Path      string `json:"path" jsonschema:"the file; relative to where the session is"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"where to start, in bytes"`
	Length    int64  `json:"length,omitempty" jsonschema:"how much to read, in bytes (default 65536, at most 1048576)"`
	SessionID string `json:"session_id,omitempty" jsonschema:"the session; without it the connection's own"`
}

type readResult struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding" jsonschema:"utf-8, or base64 for what is not"`
	NextOffset int64  `json:"next_offset"`
	More       bool   `json:"more" jsonschema:"the file goes on: call again with next_offset"`
}

type writeArguments struct {
	Path      string `json:"path" jsonschema:"the file; relative to where the session is. Directories above it are made"`
	Content   string `json:"content" jsonschema:"all that the file will hold"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"what content is: utf-8 (the default) or base64"`
	SessionID string `json:"session_id,omitempty" jsonschema:"the session; without it the connection's own"`
}

type writeResult struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
}

func (s *Server) addFileTools() {
	nonNegative := func(p map[string]*jsonschema.Schema) { p["offset"].Minimum = new(0.0) }
	add(s, &mcp.Tool{
		Name:        "sandbox_fs_list",
		Description: "List a directory as the sandbox sees it, by name, up to 1000 entries at a time.",
		Annotations: &mcp.ToolAnnotations{Title: "List a directory", ReadOnlyHint: true, OpenWorldHint: new(bool)},
	}, nonNegative, s.callList)
	add(s, &mcp.Tool{
		Name:        "sandbox_fs_read",
		Description: "Read a part of a file as the sandbox sees it.",
		Annotations: &mcp.ToolAnnotations{Title: "Read a file", ReadOnlyHint: true, OpenWorldHint: new(bool)},
	}, func(p map[string]*jsonschema.Schema) {
		nonNegative(p)
		p["length"].Minimum, p["length"].Maximum = new(float64(utf8.UTFMax)), new(float64(maxRead))
	}, s.callRead)
	add(s, &mcp.Tool{
		Name:        "sandbox_fs_write",
		Description: "Write a file in the sandbox: replace it as a whole, or not at all. What commands of the session could not write, this cannot.",
		Annotations: &mcp.ToolAnnotations{Title: "Write a file", IdempotentHint: true, OpenWorldHint: new(bool)},
	}, func(p map[string]*jsonschema.Schema) { p["encoding"].Enum = []any{"utf-8", "base64"} }, s.callWrite)
}

func (s *Server) callList(ctx context.Context, _ *mcp.CallToolRequest,
	in listArguments) (*mcp.CallToolResult, listResult, error) {
	b, _, err := s.in(in.SessionID, "path", in.Path)
	if err != nil {
		return nil, listResult{}, err
	}
	out := listResult{Path: b.at(in.Path), Entries: []entry{}}
	list, err := b.files.List(ctx, out.Path)
	if err != nil {
		return nil, out, err
	}
	for _, i := range list {
		out.Entries = append(out.Entries, entry{Name: i.Path[strings.LastIndexByte(i.Path, '/')+1:], Type: i.Type,
			Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode.Perm()),
			ModTime: i.ModTime.UTC().Format(time.RFC3339), Target: i.Target})
	}
	slices.SortFunc(out.Entries, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	out.Total = len(out.Entries)
	from := min(in.Offset, out.Total)
	to := min(from+maxEntries, out.Total)
	out.Entries, out.More = out.Entries[from:to], to < out.Total
	return listed(fmt.Sprintf("%d of %d entries of %s", len(out.Entries), out.Total, quote.Inside(out.Path)), out), out,
		nil
}

func (s *Server) callRead(ctx context.Context, _ *mcp.CallToolRequest,
	in readArguments) (*mcp.CallToolResult, readResult, error) {
	if in.Path == "" {
		return nil, readResult{}, errors.New("path is empty")
	}
	b, _, err := s.in(in.SessionID, "path", in.Path)
	if err != nil {
		return nil, readResult{}, err
	}
	out := readResult{Path: b.at(in.Path), Encoding: "utf-8"}
	length := in.Length
	length = cmp.Or(length, defaultRead)
	var buf bytes.Buffer
	if err := b.files.Read(ctx, out.Path, in.Offset, length+1, &buf); err != nil {
		return nil, out, err
	}
	data := buf.Bytes()
	if int64(len(data)) > length {
		data, out.More = data[:length], true
		// A text ends between two characters.
		for cut := len(data); cut > 0 && cut > len(data)-utf8.UTFMax; cut-- {
			if utf8.Valid(data[:cut]) {
				data = data[:cut]
				break
			}
		}
	}
	out.NextOffset = in.Offset + int64(len(data))
	words := string(data)
	if !utf8.Valid(data) {
		out.Encoding, words = "base64", base64.StdEncoding.EncodeToString(data)
	}
	out.Content = words
	said := fmt.Sprintf("encoding %s; next_offset %d; more: %t", out.Encoding, out.NextOffset, out.More)
	if words == "" {
		return text(remarks(said, "nothing there")), out, nil
	}
	res := text(remarks(said, "what follows is from the file"))
	res.Content = append(res.Content, &mcp.TextContent{Text: words})
	return res, out, nil
}

// refused adds to the error of a tool for files what the policy refused it.
func (s *Server) refused(tool string, b *box, err error) error {
	var e *files.Error
	if !errors.As(err, &e) || len(e.Denials) == 0 {
		return err
	}
	s.denied(tool, b.id, []string{e.Op, e.Path}, e.Denials...)
	var all []string
	for _, d := range told(e.Denials) {
		all = append(all, denial(d))
	}
	return fmt.Errorf("%w; %s", err, strings.Join(all, "; "))
}

func (s *Server) callWrite(ctx context.Context, _ *mcp.CallToolRequest,
	in writeArguments) (*mcp.CallToolResult, writeResult, error) {
	if in.Path == "" {
		return nil, writeResult{}, errors.New("path is empty")
	}
	if err := checkPath("path", in.Path); err != nil {
		return nil, writeResult{}, err
	}
	if strings.HasSuffix(in.Path, "/") {
		return nil, writeResult{}, errors.New("path ends with /: it names a directory")
	}
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.Strict().DecodeString(in.Content); err != nil {
			return nil, writeResult{}, fmt.Errorf("content is not base64: %w", err)
		}
	}
	if len(data) > maxWrite {
		return nil, writeResult{}, fmt.Errorf("content has %d bytes, and %d are possible", len(data), maxWrite)
	}
	b, _, err := s.session(in.SessionID)
	if err != nil {
		return nil, writeResult{}, err
	}
	out := writeResult{Path: b.at(in.Path), Bytes: len(data)}
	err = b.files.Write(ctx, out.Path, 0o644, bytes.NewReader(data))
	if errors.Is(err, fs.ErrNotExist) {
		if err = b.files.Mkdir(ctx, path.Dir(out.Path)); err == nil {
			err = b.files.Write(ctx, out.Path, 0o644, bytes.NewReader(data))
		}
	}
	if err != nil {
		return nil, out, s.refused("sandbox_fs_write", b, err)
	}
	return text(remarks(fmt.Sprintf("wrote %d bytes to %s", out.Bytes, quote.Inside(out.Path)))), out, nil
}
