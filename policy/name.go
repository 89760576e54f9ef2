package policy

import "fmt"

// maxName bounds a name that a user gives to something, in bytes.
const maxName = 64

// CheckName reports an *InvalidError of the field if a name is not 1 to 64 letters,
// digits, '-', '_' and '.', of which the first is a letter or a digit. So no name is a
// path.
func CheckName(field, name string) error {
	ok := len(name) > 0 && len(name) <= maxName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = alnum || i > 0 && (c == '-' || c == '_' || c == '.')
	}
	if !ok {
		if len(name) > maxName {
			name = name[:maxName] + "…"
		}
		return &InvalidError{Field: field, Value: name,
			Want: fmt.Sprintf("1 to %d letters, digits, '-', '_' and '.', the first a letter or digit", maxName)}
	}
	return nil
}
