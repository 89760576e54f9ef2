// Package httpbody gives the body of a request a time to come in.
//
// http.Server.ReadTimeout cannot: it goes on to count while the request is served,
// and ends one that takes longer. Without it, whoever sends a part of a body holds a
// connection for as long as he likes, also one who is refused, because the server
// reads on before it answers.
//
// It does not bound how large a body is, nor how many connections there are.
package httpbody

import (
	"io"
	"net/http"
	"time"
)

// Patience is how long a body may take.
const Patience = time.Minute

// Within serves requests by a handler. A body that has not come in time is an error
// to whoever reads it, and the end of its connection.
func Within(patience time.Duration, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			c := http.NewResponseController(w)
			if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
				http.Error(w, "the connection has no deadlines", http.StatusInternalServerError)
				return
			}
			r.Body = &body{r.Body, c}
		}
		h.ServeHTTP(w, r)
	})
}

type body struct {
	io.ReadCloser
	c *http.ResponseController
}

// Read reads on. At the end it lifts the deadline: from there on the server reads to
// learn whether the client hangs up.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.c.SetReadDeadline(time.Time{}) // it could be set, and so it can be lifted
	}
	return n, err
}
