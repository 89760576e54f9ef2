// Package model is a language model that says what it was told to: it answers as
// the APIs of Anthropic's models (/v1/messages), of OpenAI's (/v1/responses) and of
// Google's (:streamGenerateContent) do, by streams, and has an agent call its tools
// with given arguments, one call after the other. What the agent answers is kept.
//
// With it a real agent can be run without its model: to see that a command that
// the agent starts is in a sandbox. It is no model of a model: it serves one
// conversation, and knows of each API no more than agents need.
package model

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// A Call is of one of the agent's tools.
type Call struct {
	Tool  string
	Else  string // the tool to call where the agent does not offer that one; "" for none
	Input map[string]any
}

// A Server is the model. It is an [http.Handler].
type Server struct {
	calls []Call

	mu      sync.Mutex
	results []string
	tools   []string
	served  int
}

// New returns a model that makes the agent do these calls and then says "done".
func New(calls ...Call) *Server { return &Server{calls: calls} }

// Results are what the calls gave that were made, in order, as the agent showed it
// to the model.
func (s *Server) Results() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.results...)
}

// Reset begins the same conversation anew.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results = nil
}

// Tools are the names of the tools that the agent offered.
func (s *Server) Tools() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tools...)
}

// Served is how often the agent asked.
func (s *Server) Served() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// maxRequest bounds a request: the whole conversation, with what commands printed.
const maxRequest = 64 << 20 // bytes

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return
	}
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/v1/messages"):
		s.messages(w, body)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/v1/responses"):
		s.responses(w, body)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, ":streamGenerateContent"):
		s.generate(w, body, true)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, ":generateContent"):
		s.generate(w, body, false)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"type":"error","error":{"type":"not_found_error","message":"not served"}}`)
	}
}

// next notes what came of the calls so far, and returns the one to make now, nil
// if there is none left.
func (s *Server) next(tools, results []string) (n int, call *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served++
	if len(tools) == 0 {
		return 0, nil // a question of the agent's own, for a title perhaps
	}
	s.tools = tools
	if len(results) > len(s.results) {
		s.results = results
	}
	if len(results) < len(s.calls) {
		c := s.calls[len(results)]
		if c.Else != "" && !slices.Contains(tools, c.Tool) {
			c.Tool = c.Else
		}
		return len(results), &c
	}
	return len(results), nil
}

// A stream is of server-sent events.
type stream struct{ w http.ResponseWriter }

func newStream(w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	return stream{w}
}

// object is a JSON object.
type object = map[string]any

func (st stream) send(name string, fields object) {
	fields["type"] = name
	b, err := json.Marshal(fields)
	if err != nil {
		return
	}
	fmt.Fprintf(st.w, "event: %s\ndata: %s\n\n", name, b)
	if f, ok := st.w.(http.Flusher); ok {
		f.Flush()
	}
}

// messages serves Anthropic's API.
func (s *Server) messages(w http.ResponseWriter, body []byte) {
	var req struct {
		Model string
		Tools []struct {
			Name string
		}
		Messages []struct {
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var tools, results []string
	for _, t := range req.Tools {
		tools = append(tools, t.Name)
	}
	for _, m := range req.Messages {
		var parts []struct {
			Type    string
			Content json.RawMessage
		}
		if json.Unmarshal(m.Content, &parts) != nil {
			continue // a text alone
		}
		for _, p := range parts {
			if p.Type == "tool_result" {
				results = append(results, text(p.Content))
			}
		}
	}
	n, call := s.next(tools, results)
	st := newStream(w)
	st.send("message_start",
		object{"message": object{"id": fmt.Sprintf("msg_%d", n), "type": "message", "role": "assistant", "model": req.Model,
			"content": []any{}, "stop_reason": nil, "stop_sequence": nil,
			"usage": object{"input_tokens": 1, "output_tokens": 1}}})
	stop := "end_turn"
	if call != nil {
		stop = "tool_use"
		input, err := json.Marshal(call.Input)
		if err != nil {
			return
		}
		st.send("content_block_start",
			object{"index": 0, "content_block": object{"type": "tool_use", "id": fmt.Sprintf("toolu_%04d", n), "name": call.Tool,
				"input": object{}}})
		st.send("content_block_delta",
			object{"index": 0, "delta": object{"type": "input_json_delta", "partial_json": string(input)}})
	} else {
		st.send("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
		st.send("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": "done"}})
	}
	st.send("content_block_stop", object{"index": 0})
	st.send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil},
		"usage": object{"output_tokens": 1}})
	st.send("message_stop", object{})
}

// responses serves OpenAI's API.
func (s *Server) responses(w http.ResponseWriter, body []byte) {
	var req struct {
		Tools []struct {
			Type, Name string
		}
		Input []struct {
			Type   string
			Output json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var tools, results []string
	for _, t := range req.Tools {
		tools = append(tools, t.Name)
	}
	for _, i := range req.Input {
		if i.Type == "function_call_output" || i.Type == "custom_tool_call_output" {
			results = append(results, text(i.Output))
		}
	}
	n, call := s.next(tools, results)
	st := newStream(w)
	id := fmt.Sprintf("resp_%d", n)
	st.send("response.created", object{"response": object{"id": id}})
	item := object{"type": "message", "id": "msg_" + id, "role": "assistant",
		"content": []any{object{"type": "output_text", "text": "done"}}}
	if call != nil {
		input, err := json.Marshal(call.Input)
		if err != nil {
			return
		}
		item = object{"type": "function_call", "id": fmt.Sprintf("fc_%d", n), "call_id": fmt.Sprintf("call_%d", n),
			"name": call.Tool, "arguments": string(input)}
	}
	st.send("response.output_item.done", object{"output_index": 0, "item": item})
	st.send("response.completed",
		object{"response": object{"id": id, "usage": object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0}}}})
}

// generate serves Google's API.
func (s *Server) generate(w http.ResponseWriter, body []byte, streamed bool) {
	var req struct {
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
		Contents []struct {
			Parts []struct {
				FunctionResponse *struct {
					Response struct{ Output, Error json.RawMessage }
				}
			}
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var tools, results []string
	for _, t := range req.Tools {
		for _, f := range t.FunctionDeclarations {
			tools = append(tools, f.Name)
		}
	}
	for _, c := range req.Contents {
		for _, p := range c.Parts {
			if p.FunctionResponse == nil {
				continue
			}
			said := p.FunctionResponse.Response.Output
			if said == nil {
				said = p.FunctionResponse.Response.Error
			}
			results = append(results, text(said))
		}
	}
	n, call := s.next(tools, results)
	part := object{"text": "done"}
	if call != nil {
		part = object{"functionCall": object{"id": fmt.Sprintf("call_%d", n), "name": call.Tool, "args": call.Input}}
	}
	answer,
		err := json.Marshal(
		object{"candidates": []any{object{"index": 0, "content": object{"role": "model", "parts": []any{part}},
			"finishReason": "STOP"}},
			"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}})
	if err != nil {
		return
	}
	if !streamed {
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
		return
	}
	fmt.Fprintf(newStream(w).w, "data: %s\n\n", answer)
}

// text is what a result says: a string, or the texts of a list of parts.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct{ Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return string(raw)
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}
