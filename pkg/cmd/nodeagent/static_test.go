// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/staticpods"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// fakeKeeper runs until its context ends, or fails.
type fakeKeeper struct {
	dir     string
	fail    error
	problem string
	refused int
	mu      sync.Mutex
	running bool
}

func (k *fakeKeeper) Run(ctx context.Context) error {
	if k.fail != nil {
		return k.fail
	}
	k.setRunning(true)
	defer k.setRunning(false)
	<-ctx.Done()
	return nil
}

func (k *fakeKeeper) setRunning(running bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = running
}

func (k *fakeKeeper) isRunning() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.running
}

func (k *fakeKeeper) Problem() string { return k.problem }
func (k *fakeKeeper) Refused() int    { return k.refused }
func (k *fakeKeeper) Parked() ([]staticpods.Entry, error) {
	return []staticpods.Entry{{Origin: k.dir + "/a"}}, nil
}

// fakeNode is a kubelet with a configuration that changes.
type fakeNode struct {
	mu    sync.Mutex
	facts kubelet.Facts
	err   error

	keepers []*fakeKeeper
	// next is the next keeper; newErr is the error of creating it.
	next   fakeKeeper
	newErr error
	found  []string
}

func (n *fakeNode) set(dir string, live bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.facts, n.err = kubelet.Facts{StaticPodPath: dir, HealthzAddress: "127.0.0.1:10248", Running: live}, err
}

func (n *fakeNode) change(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
}

func (n *fakeNode) discover(context.Context, string) (kubelet.Facts, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts, n.err
}

func (n *fakeNode) newKeeper(dir string, _ kubelet.Facts) (keeper, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.newErr != nil {
		return nil, n.newErr
	}
	k := &fakeKeeper{dir: dir, fail: n.next.fail, problem: n.next.problem}
	n.keepers = append(n.keepers, k)
	return k, nil
}

func (n *fakeNode) running() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var dirs []string
	for _, k := range n.keepers {
		if k.isRunning() {
			dirs = append(dirs, k.dir)
		}
	}
	return dirs
}

// step changes the node. running and problem are the expected results after the agent has
// reconciled it.
type step struct {
	change  func(*fakeNode)
	running []string
	problem string
}

func TestStaticPodsFollowTheKubelet(t *testing.T) {
	set := func(dir string, live bool, err error) func(*fakeNode) {
		return func(n *fakeNode) { n.set(dir, live, err) }
	}
	broken := errors.New("no configuration")
	for name, steps := range map[string][]step{
		"a kubelet that stays": {
			{set("/a", true, nil), []string{"/a"}, ""}, {set("/a", true, nil), []string{"/a"}, ""},
		},
		"a kubelet whose configuration is written later": {
			{set("", false, broken), nil, "no configuration"}, {set("/a", true, nil), []string{"/a"}, ""},
		},
		"a kubelet whose configuration changes": {
			{set("/a", true, nil), []string{"/a"}, ""}, {set("/b", true, nil), []string{"/b"}, ""},
		},
		"a kubelet that stops: its file may differ from its flags": {
			{set("/flag", true, nil), []string{"/flag"}, ""},
			{set("/file", false, nil), []string{"/flag"}, ""},
			{set("/flag", true, nil), []string{"/flag"}, ""},
		},
		"a kubelet that does not run yet": {
			{set("/file", false, nil), []string{"/file"}, ""}, {set("/flag", true, nil), []string{"/flag"}, ""},
		},
		"a configuration that cannot be read for a while": {
			{set("/a", true, nil), []string{"/a"}, ""},
			{set("", false, broken), []string{"/a"}, ""},
			{set("/a", true, nil), []string{"/a"}, ""},
		},
		"a keeper that cannot be created at first": {
			{func(n *fakeNode) { n.set("/a", true, nil); n.change(func() { n.newErr = broken }) }, nil, "no configuration"},
			{func(n *fakeNode) { n.change(func() { n.newErr = nil }) }, []string{"/a"}, ""},
		},
		"a keeper that fails is recreated": {
			{func(n *fakeNode) { n.set("/a", true, nil); n.change(func() { n.next.fail = broken }) }, nil, "no configuration"},
			{func(n *fakeNode) { n.change(func() { n.next.fail = nil }) }, []string{"/a"}, ""},
		},
		"a keeper with a problem": {
			{func(n *fakeNode) { n.set("/a", true, nil); n.change(func() { n.next.problem = "another file system" }) }, []string{"/a"}, "another file system"},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			node := &fakeNode{}
			s := &staticPods{
				config: config.Default(), discover: node.discover, newKeeper: node.newKeeper,
				found: func(dir string) { node.found = append(node.found, dir) },
			}
			is.True(t, s.Problem() != "", "static pods can be stopped before the kubelet is known")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			for i, step := range steps {
				step.change(node)
				if i == 0 {
					go func() {
						defer close(ended)
						s.run(ctx)
					}()
				} else {
					<-time.After(discoverPeriod) // in the time of the synctest bubble
				}
				synctest.Wait()
				if got := node.running(); !slices.Equal(got, step.running) {
					t.Errorf("step %d: keepers run for %v, want %v", i, got, step.running)
				}
				if got := s.Problem(); (got == "") != (step.problem == "") || !strings.Contains(got, step.problem) {
					t.Errorf("step %d: the problem is %q, want %q", i, got, step.problem)
				}
				if n := len(step.running); n > 0 && node.found[len(node.found)-1] != step.running[n-1] {
					t.Errorf("step %d: the pods are read from %v, want %v", i, node.found, step.running)
				}
			}
			cancel()
			<-ended
			if got := node.running(); len(got) > 0 {
				t.Errorf("keepers run after the end for %v", got)
			}
		})
	}
}

// healthyKubelet is a kubelet that reports that it is healthy.
type healthyKubelet struct {
	staticpods.Kubelet
}

func (healthyKubelet) Check(context.Context) error { return nil }

// A keeper parks manifests only while its kubelet is healthy.
func TestNothingIsParkedWhileTheKubeletIsOfAnotherUnit(t *testing.T) {
	node := &fakeNode{}
	node.set("/a", true, nil)
	problem, known := "", false
	s := &staticPods{
		config: config.Default(), discover: node.discover, newKeeper: node.newKeeper, found: func(string) {},
		kubeletProblem: func(context.Context) (string, bool) { return problem, known },
	}
	k := &limitedKubelet{healthyKubelet{}, s}
	for _, test := range []struct {
		problem string
		known   bool
		want    string
	}{
		{want: "it is not known yet"},
		{problem: "it is a part of another program", known: true, want: "it is a part of another program"},
		{want: "it is a part of another program"}, // systemd does not respond
		{known: true},
	} {
		problem, known = test.problem, test.known
		must.Get(s.next(t.Context()))(t)
		if got := s.Problem(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("the problem is %q, want %q", got, test.want)
		}
		if err := k.Check(t.Context()); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("the kubelet is not healthy because of %v, want %q", err, test.want)
		}
	}
}

// The pods that are parked for the old folder stay parked. The agent must report this, and not only
// in the journal.
func TestParkedPodsOfAnOldFolderAreReported(t *testing.T) {
	old := parkedFolder(t)
	synctest.Test(t, func(t *testing.T) {
		node := &fakeNode{}
		s := &staticPods{config: config.Default(), discover: node.discover, newKeeper: node.newKeeper, found: func(string) {}}
		node.set(old, true, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		for i, step := range []struct {
			dir  string
			want bool
		}{{old, false}, {filepath.Dir(old), true}, {old, false}} {
			node.set(step.dir, true, nil)
			<-time.After(discoverPeriod) // in the time of the synctest bubble
			synctest.Wait()
			got := strings.Join(s.Warnings(), "\n")
			if strings.Contains(got, "static restore --all --static-pod-path="+old) != step.want {
				t.Errorf("step %d: the warnings are %q, want one about the old folder: %t", i, got, step.want)
			}
		}
		cancel()
		<-ended
	})
}

func TestConfiguredFolderWins(t *testing.T) {
	node := &fakeNode{}
	node.set("/kubelet", true, nil)
	c := config.Default()
	c.StaticPodPath = "/configured"
	s := &staticPods{config: c, discover: node.discover, newKeeper: node.newKeeper, found: func(string) {}}
	must.Get(s.next(t.Context()))(t)
	entries, err := s.Parked()
	if err != nil || len(entries) != 1 || entries[0].Origin != "/configured/a" {
		t.Errorf("the parked manifests are %v, %v", entries, err)
	}
}

func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	socket, link := filepath.Join(dir, "socket"), filepath.Join(dir, "link")
	must.Do(t, os.WriteFile(socket, nil, 0o600))
	must.Do(t, os.Symlink(socket, link))
	for name, test := range map[string]struct {
		facts  kubelet.Facts
		engine configv1alpha1.LocalEngine
		want   []string
	}{
		"the same endpoint":                {facts: kubelet.Facts{ContainerRuntimeEndpoint: "unix://" + socket}},
		"the same endpoint without scheme": {facts: kubelet.Facts{ContainerRuntimeEndpoint: socket}},
		"the same socket by a link":        {facts: kubelet.Facts{ContainerRuntimeEndpoint: "unix://" + link}},
		"another endpoint": {
			facts: kubelet.Facts{ContainerRuntimeEndpoint: "unix:///run/crio/crio.sock"}, want: []string{"/run/crio/crio.sock"},
		},
		"static pods from a URL": {facts: kubelet.Facts{StaticPodURL: true}, want: []string{"URL"}},
		"a kubelet with its own shutdown": {
			facts: kubelet.Facts{ShutdownFields: []string{"shutdownGracePeriod", "shutdownGracePeriodCriticalPods"}},
			want:  []string{"remove shutdownGracePeriod and shutdownGracePeriodCriticalPods"},
		},
		"a kubelet with its own shutdown, and no engine": {
			facts:  kubelet.Facts{ShutdownFields: []string{"shutdownGracePeriodByPodPriority"}},
			engine: configv1alpha1.LocalEngineNone, want: []string{"remove shutdownGracePeriodByPodPriority"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			if test.engine != "" {
				c.LocalEngine = test.engine
			}
			c.RuntimeEndpoint = "unix://" + socket
			got := warnings(c, &test.facts)
			must.True(t, len(got) == len(test.want), "the warnings are %q, want %q", got, test.want)
			for i, want := range test.want {
				is.True(t, strings.Contains(got[i], want), "the warning does not name %q: %s", want, got[i])
			}
		})
	}
}
