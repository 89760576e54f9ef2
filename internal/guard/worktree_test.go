package guard

import "testing"

// TestWorktree: the place of a linked worktree's directory counts, whatever is in it.
func TestWorktree(t *testing.T) {
	r := newRules(t, ".git/", ".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/index")
	for _, tt := range []struct {
		path string
		want Verdict
		rule string
	}{
		{"/w/.git/worktrees", Leads, ".git/commondir"},
		{"/w/.git/worktrees/x", Leads, ".git/commondir"},
		{"/w/.git/worktrees/x/commondir", Protected, ".git/commondir"},
		{"/w/.git/worktrees/x/config", Protected, ".git/config"},
		{"/w/.GIT/Worktrees/x/Config.Worktree", Protected, ".git/config.worktree"},
		{"/w/.git/WORKTR~1/x/hooks/y", Protected, ".git/hooks"},
		{"/w/.git/worktrees/x/index", Protected, ".git/index"},
		{"/w/.git/worktrees/x/sharedindex.1", Protected, ".git/index"},
		{"/w/.git/worktrees/x/HEAD", Free, ""},
		{"/w/.git/worktrees/x/logs/commondir", Free, ""},
		{"/w/worktrees/x/config", Free, ""},
		{"/w/.git/modules/x/config", Free, ""},
		// What a commondir that Git makes of a ref would lead to.
		{"/w/.git/46a69ff9cae972f562824dc31f09e03fb3376d08", Protected, ".git/commondir"},
		{"/w/.git/46A69FF9cae972f562824dc31f09e03fb3376d08/config", Protected, ".git/commondir"},
		{"/w/.git/worktrees/x/46a69ff9cae972f562824dc31f09e03fb3376d08/hooks", Protected, ".git/commondir"},
		{"/w/.git/46a69ff9cae972f562824dc31f09e03fb3376d0846a69ff9cae972f562824dc3/refs", Protected, ".git/commondir"},
		{"/w/.git/46a69ff9cae972f562824dc31f09e03fb3376d0", Free, ""},
		{"/w/.git/g6a69ff9cae972f562824dc31f09e03fb3376d08", Free, ""},
		{"/w/.git/rr-cache/46a69ff9cae972f562824dc31f09e03fb3376d08", Free, ""},
		{"/w/46a69ff9cae972f562824dc31f09e03fb3376d08/config", Free, ""},
	} {
		if got, rule := r.Match([]byte(tt.path), len("/w"), tree{}); got != tt.want || rule != tt.rule {
			t.Errorf("%s: %v %q", tt.path, got, rule)
		}
	}
	head := tree{"/w/.git/worktrees/x/HEAD": true, "/w/b/worktrees/x/HEAD": true}
	for dir, want := range map[string]string{"/w/.git/worktrees/x": "", "/w/b/worktrees/x": ".git/", "/w/.git/worktrees": ""} {
		if got := r.Completes([]byte(dir), []byte("commondir"), head); got != want {
			t.Errorf("%s: %q", dir, got)
		}
	}
	for dir, want := range map[string]bool{"/w/.git/worktrees/x": true, "/w/.git/worktrees": false, "/w/.git/worktrees/x/y": false, "/w/.git/worktree/x": false, "/w/x.git/worktrees/x": false, "/w/.Git/worktrees/x": false, "": false, "/": false} {
		if isTree([]byte(dir)) != want || want && !linked([]byte(dir)) {
			t.Errorf("%s: %v", dir, isTree([]byte(dir)))
		}
	}
	for dir, want := range map[string]bool{"/w/.git/worktrees/x": true, "/w/a/.git/worktrees/x": false, "/w/.git/worktrees/x\n": false, "/w/.git/worktrees/\r": false, "/other/.git/worktrees/x": false} {
		if stays([]byte(dir), "/w") != want {
			t.Errorf("%q stays: %v", dir, !want)
		}
	}
	if !stays([]byte("/elsewhere/.git/worktrees/x"), "/elsewhere/.git") {
		t.Error("the repository of a workspace below it stays")
	}
	for text, want := range map[string]bool{treeLink("/w/.git/worktrees/x"): true, "gitdir: /w/.git/worktrees/x": true, "gitdir: ../.git/modules/x\n": false, "x": false, "": false} {
		if linksTree([]byte(text)) != want {
			t.Errorf("%q", text)
		}
	}
}
