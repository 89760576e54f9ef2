package reexec

import "strings"

// Candidates are the paths that execvp(3) would try for a command, for
// [Config.Paths]. An empty or relative element of PATH is left out: what lies in the
// working directory is not a command.
func Candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := "/usr/local/bin:/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(search, ":") {
		if strings.HasPrefix(dir, "/") {
			out = append(out, dir+"/"+name)
		}
	}
	return out
}

// An Else is a program for where another is not: the paths to try, and the name that stands
// for the first of the arguments.
type Else struct {
	Paths []string
	Name  string
}

// OrElse is the program of that name, the zero Else for "".
func OrElse(name string, env []string) Else {
	if name == "" {
		return Else{}
	}
	return Else{Candidates(name, env), name}
}

// Of is the name of the program that was refused last: the command's, or the other's.
func (e *ExecError) Of(command, other string) string {
	if e.Else {
		return other
	}
	return command
}
