package profiles

import (
	"io/fs"
	"testing"
	"testing/fstest"
)

// TestRepository: what lies around the workspace in its repository can be read, and the
// repository be written; what only the workspace's own files point to cannot.
func TestRepository(t *testing.T) {
	f := hostFS()
	repository := func(dir string) {
		putFile(f, dir+"/HEAD", "ref: refs/heads/main\n")
		for _, d := range []string{"/objects", "/refs"} {
			f[dir+d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		}
	}
	worktree := func(git, name, dir string) {
		putFile(f, git+"/worktrees/"+name+"/gitdir", "/"+dir+"/.git\n")
		putFile(f, git+"/worktrees/"+name+"/commondir", "../..\n")
		putFile(f, dir+"/.git", "gitdir: /"+git+"/worktrees/"+name+"\n")
	}
	const mono = "home/u/src/mono"
	repository(mono + "/.git")
	worktree(mono+"/.git", "w", "home/u/src/tree")
	putFile(f, mono+"/.env", "A=1")
	putFile(f, mono+"/packages/api/main.go", "")
	putFile(f, "home/u/src/tree/pkg/x", "")
	// What git worktree add --relative-paths writes.
	putFile(f, mono+"/.git/worktrees/r/gitdir", "../../../../relative/.git\n")
	putFile(f, mono+"/.git/worktrees/r/commondir", "../..\n")
	putFile(f, "home/u/src/relative/.git", "gitdir: ../mono/.git/worktrees/r\n")
	repository("home/u/src/bare/.bare")
	worktree("home/u/src/bare/.bare", "b", "home/u/src/bare/b")
	// A submodule.
	repository(mono + "/.git/modules/vendor/lib")
	putFile(f, mono+"/.git/modules/vendor/lib/config", "[core]\n\trepositoryformatversion = 0\n\tworktree = ../../../../vendor/lib\n[remote \"x\"]\n\turl = y\n")
	putFile(f, mono+"/vendor/lib/.git", "gitdir: ../../.git/modules/vendor/lib\n")
	// Files .git that a command has written, and others that name no repository.
	for name, text := range map[string]string{
		"worktree": "gitdir: /home/u/src/mono/.git/worktrees/w\n", "repository": "gitdir: /home/u/src/mono/.git\n", "submodule": "gitdir: ../mono/.git/modules/vendor/lib\n",
		"home": "gitdir: /home/u\n", "ssh": "gitdir: ../../.ssh\n", "nothing": "gitdir: \n", "text": "x", "itself": "gitdir: .\n",
	} {
		putFile(f, "home/u/src/evil/"+name+"/.git", text)
	}
	// A repository that says so, of a name that no repository has: what could be anything.
	repository("home/u/src/odd")
	worktree("home/u/src/odd", "o", "home/u/src/oddtree")
	f["home/u/src/linked/.git"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("/home/u/src/mono/.git")}
	putFile(f, "home/u/src/linked/sub/x", "")
	f["home/u/src/half/.git/objects"] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	putFile(f, "home/u/src/half/sub/x", "")
	repository("home/u/.git")
	repository("home/u/.config/.git")
	putFile(f, "home/u/.config/tool/x", "x")
	repository("tmp/.git")
	putFile(f, "tmp/p/x", "x")
	// Homes that HOME does not name.
	repository("home/other/.git")
	putFile(f, "home/other/p/x", "x")
	repository("srv/agent/.git")
	repository("srv/agent/.cfg/.git")
	repository("srv/agent/mono/.git")
	for _, name := range []string{".ssh/key", "p/x", ".cfg/p/x", "mono/p/x"} {
		putFile(f, "srv/agent/"+name, "x")
	}
	for _, c := range []struct {
		profile, dir, path, want string
		change                   func(r *Request)
	}{
		{profile: "aicode", dir: mono + "/packages/api", path: mono, want: "r-x"},
		{profile: "aicode", dir: mono + "/packages/api", path: mono + "/packages/api", want: "rwx"},
		{profile: "aicode", dir: mono + "/packages/api", path: mono + "/.env", want: "---"},
		{profile: "strict", dir: mono + "/packages/api", path: mono, want: "r-x"},
		{profile: "strict", dir: mono + "/packages/api", path: mono + "/.git", want: "rwx"},
		{profile: "production", dir: mono + "/packages/api", path: mono + "/.git"},
		{profile: "strict", dir: mono + "/packages/api", path: mono + "/.git", change: func(r *Request) { r.Workspace = "overlay" }},
		{profile: "strict", dir: mono + "/packages/api", path: mono + "/.git", change: func(r *Request) { r.ReadOnly = []string{"/" + mono + "/packages"} }},
		{profile: "strict", dir: mono + "/packages/api", path: mono, change: func(r *Request) { r.NoGit = true }},
		{profile: "strict", dir: mono + "/packages/api", path: mono, change: func(r *Request) { r.Workspace = "none" }},
		{profile: "strict", dir: mono, path: mono, want: "rwx"},
		{profile: "aicode", dir: "home/u/src/tree", path: mono + "/.git", want: "rwx"},
		{profile: "strict", dir: "home/u/src/tree", path: mono + "/.git", want: "rwx"},
		{profile: "strict", dir: "home/u/src/tree", path: mono},
		{profile: "strict", dir: "home/u/src/tree/pkg", path: "home/u/src/tree", want: "r-x"},
		{profile: "strict", dir: "home/u/src/tree/pkg", path: mono + "/.git", want: "rwx"},
		{profile: "strict", dir: "home/u/src/relative", path: mono + "/.git", want: "rwx"},
		{profile: "strict", dir: "home/u/src/bare/b", path: "home/u/src/bare/.bare", want: "rwx"},
		{profile: "strict", dir: mono + "/vendor/lib", path: mono + "/.git/modules/vendor/lib", want: "rwx"},
		{profile: "strict", dir: mono + "/vendor/lib", path: mono},
		{profile: "strict", dir: "home/u/src/evil/worktree", path: mono + "/.git"},
		{profile: "strict", dir: "home/u/src/evil/repository", path: mono + "/.git"},
		{profile: "strict", dir: "home/u/src/evil/submodule", path: mono + "/.git/modules/vendor/lib"},
		{profile: "strict", dir: "home/u/src/evil/home", path: "home/u/go"},
		{profile: "strict", dir: "home/u/src/evil/ssh", path: "home/u/.ssh"},
		{profile: "strict", dir: "home/u/src/evil/nothing", path: "home/u/src/evil"},
		{profile: "strict", dir: "home/u/src/evil/text", path: "home/u/src/evil"},
		{profile: "strict", dir: "home/u/src/evil/itself", path: "home/u/src/evil"},
		{profile: "strict", dir: "home/u/src/oddtree", path: "home/u/src/odd"},
		{profile: "strict", dir: "home/u/src/linked/sub", path: "home/u/src/linked"},
		{profile: "strict", dir: "home/u/src/linked/sub", path: mono + "/.git"},
		{profile: "strict", dir: "home/u/src/half/sub", path: "home/u/src/half"},
		{profile: "aicode", dir: "home/u/.config/tool", path: "home/u/.config"},
		{profile: "strict", dir: "home/u/src/project/sub", path: "home/u/src"},
		{profile: "strict", dir: "tmp/p", path: "tmp/.git"},
		{profile: "strict", dir: "home/other/p", path: "home/other"},
		{profile: "strict", dir: "srv/agent/p", path: "srv/agent"},
		{profile: "strict", dir: "srv/agent/.cfg/p", path: "srv/agent/.cfg"},
		{profile: "strict", dir: "srv/agent/mono/p", path: "srv/agent/mono", want: "r-x"},
	} {
		req := Request{Profile: c.profile, Dir: "/" + c.dir}
		if c.change != nil {
			c.change(&req)
		}
		if got := access(t, mustResolve(t, req, testFacts(f)), "/"+c.path); got != c.want {
			t.Errorf("%s in %s: %s is %q, want %q", c.profile, c.dir, c.path, got, c.want)
		}
	}
}
