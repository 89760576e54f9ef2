package driver

import (
	"reflect"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// A Coverage says what a driver makes of each field of a policy. It is data:
// Check refuses a policy by it, "sbxrun driver list" and docs/drivers.md print
// it. A field that it does not name is refused when it is set, so that a field
// that is new to the policy is never ignored in silence.
type Coverage []Field

// A Field is one field of a policy, with all below it that has no Field of its
// own.
type Field struct {
	// Name is dotted, as the policy prints: "files", "oci.process.args".
	Name string

	// How the driver enforces it, or for a field that it refuses, why.
	How string

	// Refused fields are errors when they are set.
	Refused bool

	// Layer, if not 0, is what the field belongs to: a field that is refused
	// is passed over if the policy agrees to go without the layer.
	Layer policy.Layers
}

// Unsupported names the fields that are set and that the driver refuses, or
// returns nil.
func (c Coverage) Unsupported(driver string, p *policy.Policy) *UnsupportedError {
	e := &UnsupportedError{Driver: driver}
	c.walk(reflect.ValueOf(p).Elem(), "", func(name string, f *Field) {
		if f != nil && f.Layer != 0 && p.Degrade&^p.Require&f.Layer == f.Layer {
			return
		}
		if !slices.Contains(e.Rules, name) {
			e.Rules = append(e.Rules, name)
		}
	})
	if len(e.Rules) == 0 {
		return nil
	}
	return e
}

// Find returns the field that covers a name: its own, else the nearest above.
func (c Coverage) Find(name string) *Field {
	for {
		for i := range c {
			if c[i].Name == name {
				return &c[i]
			}
		}
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return nil
		}
		name = name[:dot]
	}
}

// refines reports whether a field below name is listed.
func (c Coverage) refines(name string) bool {
	return slices.ContainsFunc(c, func(f Field) bool { return strings.HasPrefix(f.Name, name+".") })
}

// walk calls refused for each field that is set and not enforced.
func (c Coverage) walk(v reflect.Value, name string, refused func(string, *Field)) {
	if v.IsZero() {
		return
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
		if v.Kind() == reflect.Struct && v.IsZero() {
			return
		}
	}
	leaf := v.Kind() != reflect.Struct && !(v.Kind() == reflect.Slice && structs(v.Type().Elem()))
	if name != "" && (leaf || !c.refines(name)) {
		if v.Kind() == reflect.Slice && v.Len() == 0 || v.Kind() == reflect.Map && v.Len() == 0 {
			return
		}
		if f := c.Find(name); f == nil || f.Refused {
			refused(name, f)
		}
		return
	}
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			c.walk(v.Index(i), name, refused)
		}
		return
	}
	for i := range v.NumField() {
		c.walk(v.Field(i), join(name, FieldName(v.Type().Field(i))), refused)
	}
}

func structs(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func join(above, name string) string {
	if above == "" {
		return name
	}
	return above + "." + name
}

// FieldName is the name of a policy's field as the policy prints.
func FieldName(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
		return name
	}
	return strings.ToLower(f.Name)
}

// Stale lists the names that no field of a policy has: a table that has some
// says something of nothing.
func (c Coverage) Stale() []string {
	var stale []string
	for _, f := range c {
		t := reflect.TypeFor[policy.Policy]()
		for part := range strings.SplitSeq(f.Name, ".") {
			if t = fieldType(t, part); t == nil {
				stale = append(stale, f.Name)
				break
			}
		}
	}
	return stale
}

// fieldType returns the type of a field, of the elements if it is a list.
func fieldType(t reflect.Type, name string) reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		if f := t.Field(i); FieldName(f) == name {
			for f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Slice {
				f.Type = f.Type.Elem()
			}
			return f.Type
		}
	}
	return nil
}
