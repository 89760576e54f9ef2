// Package strictjson refuses JSON that two readers could take for two things.
//
// encoding/json takes the last of two members with one name, and a name in any
// case; others take the first. So a program that logs or checks a message could
// read another message than the one that is acted upon. Here such a text is an
// error, and so is one that is not UTF-8, or has half a surrogate pair, or is nested
// so deep, or of so many members, that reading it is an attack.
package strictjson

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// MaxDepth is how many objects and arrays can be within one another. Messages
	// of people and agents have less than ten.
	MaxDepth = 100

	// MaxMembers is how many members all objects of a text can have together: the
	// names of an object are kept until its end.
	MaxMembers = 1 << 16
)

// Check reports why a text is not one value of JSON that has one meaning. Names
// that differ only in case count as one: some readers take them so.
func Check(text []byte) error {
	return (&walk{fold: true}).all(text)
}

// Unmarshal reads a text into what a pointer leads to. Names are those of the type,
// in the same case; a struct's own fields are meant, not those of an embedded one.
func Unmarshal(text []byte, to any) error {
	if err := (&walk{}).all(text, reflect.TypeOf(to)); err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// A KeyError is a name that the type has not, or that is there twice.
type KeyError struct {
	Name  string
	Path  string // the name after those around it: a.b, a[0].b
	Twice bool
	At    int64 // byte
}

func (e *KeyError) Error() string {
	if e.Twice {
		return fmt.Sprintf("key %q is there twice, at byte %d", e.Name, e.At)
	}
	return fmt.Sprintf("unknown key %q at byte %d", e.Name, e.At)
}

type walk struct {
	*json.Decoder
	fold    bool
	depth   int
	members int
	path    []any // names, and places in arrays, on the way to the value
}

// at is the path in words.
func (w *walk) at() string {
	var b strings.Builder
	for i, p := range w.path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		case string:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(short(p))
		}
	}
	return b.String()
}

func (w *walk) all(text []byte, of ...reflect.Type) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	w.Decoder = json.NewDecoder(bytes.NewReader(text))
	w.UseNumber()
	var t reflect.Type
	if len(of) > 0 {
		t = of[0]
	}
	if err := w.value(t, false); err == io.EOF {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	if _, err := w.Token(); err != io.EOF {
		return fmt.Errorf("something follows the value, at byte %d", w.InputOffset())
	}
	// The decoder of tokens is not the strictest.
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return err
	}
	return pairs(text)
}

// pairs refuses an escape that is half a surrogate pair: encoding/json reads each as
// U+FFFD, so that two texts would be one, and others keep it as it is.
//
// Preconditions: the text is JSON. A backslash is then within a string.
func pairs(text []byte) error {
	for rest := text; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return nil
		}
		at := len(text) - len(rest) + i
		r, n := escaped(rest[i:])
		rest = rest[i+n:]
		if !utf16.IsSurrogate(r) {
			continue
		}
		low, n := escaped(rest)
		if utf16.DecodeRune(r, low) == unicode.ReplacementChar {
			return fmt.Errorf("half a surrogate pair, at byte %d", at)
		}
		rest = rest[n:]
	}
}

// escaped reads an escape at the beginning of a text, and how long it is. What is
// none, or no \u, is no surrogate.
func escaped(text []byte) (r rune, n int) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1, min(2, len(text))
	}
	v, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1, 2
	}
	return rune(v), 6
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// fits reports whether encoding/json reads a value of this kind into a type. It reads null
// into every type, and leaves an element of an array or an object empty then: there it would
// be taken for "" or 0.
func fits(of reflect.Type, kind string, element bool) bool {
	if kind == "null" {
		return !element || slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map},
			of.Kind())
	}
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if p := reflect.PointerTo(of); p.Implements(unmarshaler) || p.Implements(textUnmarshaler) {
		return true
	}
	switch k := of.Kind(); {
	case k == reflect.String:
		return kind == "string"
	case k == reflect.Bool:
		return kind == "bool"
	case k >= reflect.Int && k <= reflect.Float64:
		return kind == "number"
	case k == reflect.Slice && of.Elem().Kind() == reflect.Uint8:
		return kind == "string" || kind == "array"
	case k == reflect.Slice, k == reflect.Array:
		return kind == "array"
	case k == reflect.Map, k == reflect.Struct:
		return kind == "object"
	}
	return true
}

// kindOf is what encoding/json calls the kind of a value that begins with a token.
func kindOf(t json.Token) string {
	switch t := t.(type) {
	case string:
		return "string"
	case bool:
		return "bool"
	case json.Number:
		return "number"
	case json.Delim:
		if t == '{' {
			return "object"
		}
		return "array"
	}
	return "null"
}

// value walks over the next value. Of is what it is read into, nil if that is of no
// matter.
func (w *walk) value(of reflect.Type, element bool) error {
	t, err := w.Token()
	if err != nil {
		return err
	}
	if kind := kindOf(t); of != nil && !fits(of, kind, element) {
		return &json.UnmarshalTypeError{Value: kind, Type: of, Offset: w.InputOffset(), Field: w.at()}
	}
	for of != nil && of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of != nil && reflect.PointerTo(of).Implements(unmarshaler) {
		of = nil
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if w.depth++; w.depth > MaxDepth {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	if open == '{' {
		err = w.object(of)
	} else {
		err = w.array(of)
	}
	if err == nil {
		_, err = w.Token() // what closes it
	}
	w.depth--
	return err
}

func (w *walk) array(of reflect.Type) (err error) {
	var element reflect.Type
	if of != nil && (of.Kind() == reflect.Slice || of.Kind() == reflect.Array) {
		element = of.Elem()
	}
	for i := 0; err == nil && w.More(); i++ {
		w.path = append(w.path, i)
		err = w.value(element, true)
		w.path = w.path[:len(w.path)-1]
	}
	return err
}

func (w *walk) object(of reflect.Type) error {
	seen := map[string]bool{}
	for w.More() {
		t, err := w.Token()
		if err != nil {
			return err
		}
		name, ok := t.(string)
		if !ok {
			return fmt.Errorf("no name at byte %d", w.InputOffset())
		}
		if w.members++; w.members > MaxMembers {
			return fmt.Errorf("more than %d members", MaxMembers)
		}
		w.path = append(w.path, name)
		key := name
		if w.fold {
			key = strings.ToLower(strings.ToUpper(name))
		}
		if seen[key] {
			return &KeyError{short(name), w.at(), true, w.InputOffset()}
		}
		seen[key] = true
		var to reflect.Type
		if of != nil {
			switch of.Kind() {
			case reflect.Map:
				to = of.Elem()
			case reflect.Struct:
				if to = field(of, name); to == nil {
					return &KeyError{short(name), w.at(), false, w.InputOffset()}
				}
			}
		}
		if err := w.value(to, of != nil && of.Kind() == reflect.Map); err != nil {
			return err
		}
		w.path = w.path[:len(w.path)-1]
	}
	return nil
}

// field is the type of a struct's field by its name in JSON, nil if there is none.
func field(of reflect.Type, name string) reflect.Type {
	for i := range of.NumField() {
		f := of.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && cmp.Or(tag, f.Name) == name && tag != "-" {
			return f.Type
		}
	}
	return nil
}

// short is a name for an error.
func short(name string) string {
	if r := []rune(name); len(r) > 64 {
		return string(r[:64]) + "…"
	}
	return name
}
