package profiles

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// gitOrigin is the origin of rules for a repository outside of the workspace.
const gitOrigin = "repository of the workspace"

// repository shows the repository that the workspace belongs to, where that lies
// outside of it: of a directory of a repository the rest, read-only, and the
// repository itself; of a linked worktree and of a submodule its repository. Git needs
// the rest: it takes files that it does not see for removed.
//
// A file .git counts only if the repository that it names says so, too: a command can
// have written the file.
func (r *resolver) repository(st []statement, mode string) []statement {
	if !r.flag(keyGit) {
		return st
	}
	access := policy.All
	if mode != "bind" || slices.ContainsFunc(r.req.ReadOnly, func(item string) bool {
		full, err := r.facts.expand(item, r.facts.Cwd)
		return err == nil && policy.Below(r.workspace, full)
	}) {
		access = policy.ReadExec
	}
	for dir := r.workspace; dir == r.workspace || r.project(dir); dir = path.Dir(dir) {
		info, err := fs.Lstat(r.facts.FS, fsPath(dir+"/.git"))
		if err != nil {
			continue
		}
		git := dir + "/.git"
		switch {
		case info.Mode().IsRegular():
			git = r.linkedRepository(dir)
		case !info.IsDir() || dir == r.workspace || !r.isRepository(git):
			git = ""
		}
		if git == "" {
			break
		}
		if dir != r.workspace {
			st = append(st, statement{path: dir, access: policy.ReadExec, optional: true, origin: gitOrigin})
		}
		if !policy.Below(git, r.workspace) {
			st = append(st, statement{path: git, access: access, optional: true, origin: gitOrigin})
		}
		break
	}
	return st
}

// project reports whether a directory may be one of a project. No home is, whatever HOME
// says, and directories of a home with a dot are settings.
func (r *resolver) project(dir string) bool {
	if checkWorkspace(dir, "", r.facts, r.values[keySecrets].parts) != nil {
		return false
	}
	for at := range ancestors(dir) {
		if (at == dir || dir[len(at)+1] == '.') && r.isHome(at) {
			return false
		}
	}
	return true
}

// isHome reports whether a directory is somebody's home, by its place or by what it holds.
func (r *resolver) isHome(dir string) bool {
	switch path.Dir(dir) {
	case "/home", "/Users":
		return true
	}
	return dir == "/root" || dir == r.facts.home() ||
		slices.ContainsFunc([]string{"/.ssh", "/.gnupg"}, func(name string) bool {
			_, err := fs.Lstat(r.facts.FS, fsPath(dir+name))
			return err == nil
		})
}

// isRepository reports whether a directory is a repository of the caller's.
func (r *resolver) isRepository(dir string) bool {
	for _, name := range [...]string{"objects", "refs", "."} {
		info, err := fs.Lstat(r.facts.FS, fsPath(path.Join(dir, name)))
		if err != nil || !info.IsDir() {
			return false
		}
		if owner, known := ownerOf(info); known && owner != r.facts.UID {
			return false
		}
	}
	return r.line(dir+"/HEAD") != ""
}

// linkedRepository returns the repository of a linked worktree or a submodule, "" if
// there is none that says so itself.
func (r *resolver) linkedRepository(dir string) string {
	own, ok := strings.CutPrefix(r.line(dir+"/.git"), "gitdir: ")
	if !ok {
		return ""
	}
	pl, err := r.facts.follow(from(dir, own))
	git := pl.real
	if err != nil || !pl.mode.IsDir() {
		return ""
	}
	if common := path.Dir(path.Dir(git)); path.Base(path.Dir(git)) == "worktrees" {
		if from(git, r.line(git+"/gitdir")) != dir+"/.git" || from(git, r.line(git+"/commondir")) != common {
			return ""
		}
		git = common
	} else if from(git, r.worktree(git+"/config")) != dir {
		return ""
	}
	if !policy.RepositoryName(git) || !r.project(strings.TrimSuffix(git, "/.git")) || !r.isRepository(git) {
		return ""
	}
	return git
}

// from is a path that may be relative to a directory, "" for none.
func from(dir, p string) string {
	switch {
	case p == "":
		return ""
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// line is what a small file holds, "" if it cannot be read.
func (r *resolver) line(name string) string {
	text, ok, err := source{facts: r.facts}.readFile(name, false, maxGitFile)
	if !ok || err != nil || len(text) > maxGitFile {
		return ""
	}
	return strings.TrimSpace(text)
}

const maxGitFile = 64 << 10 // bytes

// worktree is core.worktree of a submodule's configuration, as Git writes it.
func (r *resolver) worktree(config string) string {
	section := ""
	for line := range strings.Lines(r.line(config)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
		} else if key, value, ok := strings.Cut(line, "="); ok && section == "[core]" &&
			strings.EqualFold(strings.TrimSpace(key), "worktree") {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
