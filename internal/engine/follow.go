package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/oncejson"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// FollowEvery is how often the files that network rules come from are looked at
// while a sandbox runs, and read again if they can have changed.
const FollowEvery = 2 * time.Second

// A Follower keeps the network rules of a running sandbox as the files say. A file
// that is broken leaves the last good rules in place.
type Follower struct {
	Request *profiles.Request
	Facts   *profiles.Facts
	Began   *profiles.Resolved
	To      driver.Changeable

	Changed func()             // the rules are others now
	Broken  func(cause string) // they stay, for this; "" when that is over
}

// Follow does so until done is closed.
func (w *Follower) Follow(done <-chan struct{}) {
	tick := time.NewTicker(FollowEvery)
	defer tick.Stop()
	rules, told := w.Began.Policy.Egress, ""
	files := w.Began.Files
	var seen map[string]os.FileInfo
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		now := look(files)
		if told == "" && seen != nil && unchanged(seen, now) {
			continue
		}
		seen = now
		again, err := w.Began.Again(w.Request, w.Facts)
		if err == nil {
			files = again.Files
		}
		if err == nil && !reflect.DeepEqual(again.Policy.Egress, rules) {
			if err = w.To.Reload(again.Policy.Egress); err == nil {
				rules = again.Policy.Egress
				w.Changed()
			}
		}
		cause := ""
		if err != nil {
			cause = err.Error()
		}
		if cause != told {
			told = cause
			w.Broken(cause)
		}
	}
}

// look stats files; one that is not there has no entry.
func look(files profiles.Files) map[string]os.FileInfo {
	now := make(map[string]os.FileInfo, len(files))
	for name := range files {
		if info, err := os.Stat(name); err == nil {
			now[name] = info
		}
	}
	return now
}

// unchanged reports whether no file can have changed from one look to the next. One
// that was written a moment before may have been written again in the same moment.
func unchanged(was, now map[string]os.FileInfo) bool {
	if len(was) != len(now) {
		return false
	}
	for name, a := range was {
		b, ok := now[name]
		if !ok || !os.SameFile(a, b) || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) ||
			time.Since(b.ModTime()) < 2*FollowEvery {
			return false
		}
	}
	return true
}

// RulesStay is how a text begins that says why rules did not change.
const RulesStay = "the network rules stay as they were: "

// origin is what a session's policy was made of, as its holder is told: the holder
// has another environment and directory.
type origin struct {
	Request    profiles.Request `json:"request"`
	Home       string           `json:"home"`
	Cwd        string           `json:"cwd"`
	UID        uint32           `json:"uid"`
	GID        uint32           `json:"gid"`
	Environ    []string         `json:"environ"` // sbxrun's own variables
	CPUs       int              `json:"cpus"`
	ConfigDirs []string         `json:"config_dirs"`
	Own        []profiles.Own   `json:"own"`
}

// OriginOf is the origin of a policy whose network rules can change, nil for others.
func OriginOf(req *profiles.Request, r *profiles.Resolved, f *Facts) (json.RawMessage, error) {
	if r.Policy.Egress.Mode != policy.EgressProxy {
		return nil, nil
	}
	environ := slices.DeleteFunc(slices.Clone(f.Environ),
		func(kv string) bool { return !strings.HasPrefix(kv, "SBXRUN_") })
	return oncejson.Marshal(&origin{*req, f.Home, f.Cwd, f.UID, f.GID, environ, f.CPUs, f.ConfigDirs, f.Own})
}

// Follows is a driver whose sandboxes follow the network rules of their origin.
type Follows struct {
	driver.Driver
	Origin json.RawMessage

	mu     sync.Mutex
	notice string
}

// Notice is what there is to tell of the rules, "" if they are what the files say.
func (k *Follows) Notice() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.notice
}

func (k *Follows) tell(cause string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.notice = cause; cause != "" {
		k.notice = RulesStay + cause
	}
}

// Open builds a sandbox.
func (k *Follows) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	var from origin
	if err := oncejson.Unmarshal(k.Origin, &from); err != nil {
		return nil, fmt.Errorf("origin: %w", err)
	}
	facts := &profiles.Facts{Home: from.Home, Cwd: from.Cwd, UID: from.UID, GID: from.GID, Environ: from.Environ,
		CPUs:       from.CPUs,
		ConfigDirs: from.ConfigDirs, Own: from.Own, FS: HostFS{}}
	// What the workspace says counts as it did before a command could write there.
	began, err := profiles.Resolve(&from.Request, facts)
	box, operr := k.Driver.Open(ctx, p)
	if operr != nil {
		return nil, operr
	}
	if err != nil {
		k.tell(err.Error())
		return box, nil
	}
	began.Policy.Egress = p.Egress // what it was built with
	w := Follower{&from.Request, facts, began, box, func() {}, k.tell}
	go w.Follow(box.Done())
	return box, nil
}
