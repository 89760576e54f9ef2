// Package oncejson is encoding/json for a value that is written, or read, once in
// the life of a process.
//
// encoding/json lays out a plan of a type before it touches the first value of it,
// with all types that this can hold: of a policy, which holds the whole OCI
// specification, that takes half a millisecond, and of a command of a session a
// quarter. A client of a session or a server sends one of each, and has ended
// before a plan pays. Here a type is looked at when there is a value of it.
//
// What is written is byte for byte what encoding/json writes, and what it reads is
// what that wrote: names are compared as they are. Kinds of values that the
// messages of this module do not have, or seldom, are handed on to it. A type that
// writes itself does so by a method of the value, not only of a pointer to it.
//
// In one thing it differs. Arguments, variables and paths are bytes on Linux, and
// encoding/json replaces those that are not UTF-8, so that another argument would
// arrive, or two paths be one. Here such a byte is written as the lone surrogate
// U+DC00 + byte, as Python's surrogateescape does (PEP 383), and read back.
package oncejson

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Marshal returns what json.Marshal returns.
func Marshal(v any) ([]byte, error) {
	return appendValue(make([]byte, 0, 512), reflect.ValueOf(v))
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	number        = reflect.TypeFor[json.Number]()
)

// look is what is known of a type that a value was met of.
type look struct {
	foreign bool // it writes itself
	fields  []field
	whole   bool // a struct that encoding/json is to write: its fields are not only its own
}

type field struct {
	index     int
	key       string // the name as Marshal writes it, with what stands around it
	omitEmpty bool
}

var looks sync.Map // of *look, by reflect.Type

// plain is the look of a type without a name, which has no methods, and no fields.
var plain look

func lookAt(t reflect.Type) *look {
	if t.PkgPath() == "" && t.Kind() != reflect.Struct {
		return &plain
	}
	if l, ok := looks.Load(t); ok {
		return l.(*look)
	}
	l := &look{}
	if t.Name() != "" && t.PkgPath() != "" { // else it has no methods
		l.foreign = t.NumMethod() > 0 && (t.Implements(marshaler) || t.Implements(textMarshaler))
	}
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, ok := tagOf(&f)
			l.whole = l.whole || f.Anonymous || ok && options != "" && options != "omitempty"
			if ok {
				key, _ := appendString([]byte{','}, name)
				l.fields = append(l.fields, field{i, string(append(key, ':')), options == "omitempty"})
			}
		}
	}
	looks.Store(t, l)
	return l
}

func appendValue(b []byte, v reflect.Value) ([]byte, error) {
	if !v.IsValid() {
		return append(b, "null"...), nil
	}
	t := v.Type()
	l := lookAt(t)
	if l.foreign {
		return appendForeign(b, v)
	}
	switch t.Kind() {
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case reflect.String:
		if t != number {
			return appendString(b, v.String())
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		return appendValue(b, v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		if t.Elem().Kind() != reflect.Uint8 { // bytes are written in base64
			return appendList(b, v)
		}
	case reflect.Array:
		return appendList(b, v)
	case reflect.Struct:
		return appendStruct(b, v, l)
	}
	return appendForeign(b, v)
}

// appendForeign has encoding/json do it.
func appendForeign(b []byte, v reflect.Value) ([]byte, error) {
	out, err := json.Marshal(v.Interface())
	return append(b, out...), err
}

func appendString(b []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			if !utf8.ValidString(s) {
				return appendBytes(b, s)
			}
			out, err := json.Marshal(s)
			return append(b, out...), err
		}
	}
	return append(append(append(b, '"'), s...), '"'), nil
}

// appendBytes appends a string that is not all UTF-8.
func appendBytes(b []byte, s string) ([]byte, error) {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for len(s) > 0 {
		n := 0
		for n < len(s) {
			r, size := utf8.DecodeRuneInString(s[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		text, err := json.Marshal(s[:n])
		if err != nil {
			return nil, err
		}
		b = append(b, text[1:len(text)-1]...)
		if s = s[n:]; len(s) > 0 {
			b = append(b, '\\', 'u', 'd', 'c', hex[s[0]>>4], hex[s[0]&15])
			s = s[1:]
		}
	}
	return append(b, '"'), nil
}

func appendList(b []byte, v reflect.Value) (_ []byte, err error) {
	b = append(b, '[')
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, v.Index(i)); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendStruct(b []byte, v reflect.Value, l *look) (_ []byte, err error) {
	if l.whole {
		return appendForeign(b, v)
	}
	b = append(b, '{')
	first := true
	for i := range l.fields {
		f := &l.fields[i]
		value := v.Field(f.index)
		if f.omitEmpty && isEmpty(value) {
			continue
		}
		key := f.key
		if first {
			key, first = key[1:], false
		}
		b = append(b, key...)
		if b, err = appendValue(b, value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// tagOf is a field's name and its options; false if it is none of JSON's.
func tagOf(f *reflect.StructField) (name, options string, ok bool) {
	tag := f.Tag.Get("json")
	if f.PkgPath != "" || tag == "-" {
		return "", "", false
	}
	name, options, _ = strings.Cut(tag, ",")
	return cmp.Or(name, f.Name), options, true
}

// isEmpty is what omitempty leaves out.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

var errValue = errors.New("oncejson: not a pointer")

// Unmarshal reads what Marshal has written into what a pointer leads to. Members
// that this has no field for are passed over.
func Unmarshal(data []byte, to any) error {
	v := reflect.ValueOf(to)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return errValue
	}
	if !json.Valid(data) {
		return json.Unmarshal(data, to) // it says what is wrong
	}
	r := reader{data: data}
	return r.value(v.Elem())
}

// reader reads what is known to be valid.
type reader struct {
	data []byte
	at   int
}

// peek is the byte that the next value, or what ends a list of them, begins with.
func (r *reader) peek() byte {
	for {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return c
		}
	}
}

// skip returns the text of the next value.
func (r *reader) skip() []byte {
	c := r.peek()
	from := r.at
	switch c {
	case '"':
		for r.at++; r.data[r.at] != '"'; r.at++ {
			if r.data[r.at] == '\\' {
				r.at++
			}
		}
		r.at++
	case '{', '[':
		r.at++
		for c := r.peek(); c != '}' && c != ']'; c = r.peek() {
			if c == ',' || c == ':' {
				r.at++
				continue
			}
			r.skip()
		}
		r.at++
	default:
		for r.at < len(r.data) && strings.IndexByte(" \t\r\n,:]}", r.data[r.at]) < 0 {
			r.at++
		}
	}
	return r.data[from:r.at]
}

func (r *reader) value(v reflect.Value) error {
	c := r.peek()
	t := v.Type()
	switch how := readsItself(t); {
	case how == byText && c == '"':
		text, err := unquote(r.skip())
		if err != nil {
			return err
		}
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	case how != byFields:
		return json.Unmarshal(r.skip(), v.Addr().Interface())
	}
	switch k := t.Kind(); {
	case c == 'n' && (k == reflect.Pointer || k == reflect.Slice):
		r.skip()
		v.SetZero()
		return nil
	case k == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		return r.value(v.Elem())
	case k == reflect.Struct && c == '{':
		return r.object(v)
	case k == reflect.Slice && c == '[' && t.Elem().Kind() != reflect.Uint8:
		return r.list(v)
	case k == reflect.String && c == '"' && t != number:
		text, err := unquote(r.skip())
		v.SetString(text)
		return err
	case k == reflect.Bool && (c == 't' || c == 'f'):
		r.skip()
		v.SetBool(c == 't')
		return nil
	}
	raw := r.skip()
	if whole(v, raw) {
		return nil
	}
	return json.Unmarshal(raw, v.Addr().Interface())
}

// whole sets an integer, if the text is one that it can hold.
func whole(v reflect.Value, raw []byte) bool {
	switch {
	case v.CanInt():
		n, err := strconv.ParseInt(string(raw), 10, v.Type().Bits())
		if err == nil {
			v.SetInt(n)
		}
		return err == nil
	case v.CanUint():
		n, err := strconv.ParseUint(string(raw), 10, v.Type().Bits())
		if err == nil {
			v.SetUint(n)
		}
		return err == nil
	}
	return false
}

// How a type is read: by its fields, or by a method of its own.
const (
	byFields = iota
	byText
	byMethod
)

var ways sync.Map // of these, by reflect.Type

func readsItself(t reflect.Type) int {
	if t.PkgPath() == "" { // without a name it has no methods
		return byFields
	}
	if way, ok := ways.Load(t); ok {
		return way.(int)
	}
	way := byFields
	switch p := reflect.PointerTo(t); {
	case p.NumMethod() == 0:
	case p.Implements(unmarshaler):
		way = byMethod
	case p.Implements(textUnmarshaler):
		way = byText
	}
	ways.Store(t, way)
	return way
}

// unquote is what a string of JSON stands for.
func unquote(raw []byte) (s string, err error) {
	for _, c := range raw {
		if c == '\\' || c >= 0x80 {
			if bytes.Contains(raw, []byte(`\udc`)) {
				return unquoteBytes(raw)
			}
			err = json.Unmarshal(raw, &s)
			return s, err
		}
	}
	return string(raw[1 : len(raw)-1]), nil
}

// unquoteBytes reads what appendBytes may have written.
func unquoteBytes(raw []byte) (string, error) {
	var out []byte
	from, end := 1, len(raw)-1
	text := func(to int) error {
		var s string
		err := json.Unmarshal(append(append([]byte{'"'}, raw[from:to]...), '"'), &s)
		out = append(out, s...)
		return err
	}
	for i := from; i < end; {
		switch {
		case raw[i] != '\\':
			i++
		case raw[i+1] != 'u':
			i += 2
		case strings.IndexByte("dD", raw[i+2]) >= 0 && strings.IndexByte("89abAB", raw[i+3]) >= 0:
			i += 6 // of a pair, as others may write it, the first
			if raw[i] == '\\' && raw[i+1] == 'u' {
				i += 6
			}
		case raw[i+2] == 'd' && raw[i+3] == 'c' && raw[i+4] >= '8':
			if err := text(i); err != nil {
				return "", err
			}
			c, err := strconv.ParseUint(string(raw[i+4:i+6]), 16, 8)
			if err != nil {
				return "", err
			}
			out = append(out, byte(c))
			i += 6
			from = i
		default:
			i += 6
		}
	}
	err := text(end)
	return string(out), err
}

func (r *reader) list(v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 4))
	for r.at++; r.peek() != ']'; {
		if r.peek() == ',' {
			r.at++
			continue
		}
		n := v.Len()
		v.Grow(1)
		v.SetLen(n + 1)
		e := v.Index(n)
		e.SetZero()
		if err := r.value(e); err != nil {
			return err
		}
	}
	r.at++
	return nil
}

func (r *reader) object(v reflect.Value) error {
	l := lookAt(v.Type())
	if l.whole {
		return json.Unmarshal(r.skip(), v.Addr().Interface())
	}
	for r.at++; r.peek() != '}'; {
		if r.peek() == ',' {
			r.at++
			continue
		}
		name := r.skip()
		r.peek()
		r.at++ // the colon
		i := slices.IndexFunc(l.fields, func(f field) bool { return f.key[1:len(f.key)-1] == string(name) })
		if i < 0 {
			r.skip()
			continue
		}
		if err := r.value(v.Field(l.fields[i].index)); err != nil {
			return err
		}
	}
	r.at++
	return nil
}
