// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/files"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const node = "Node-1"

// newAPIPod returns a pod of the node as the API server returns it.
func newAPIPod(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](30)},
	}
	for _, mod := range mods {
		mod(p)
	}
	return p
}

func priority(value int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &value }
}

func class(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
}

func phase(of corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = of }
}

// mirrorOf makes the pod the mirror pod of a static pod.
func mirrorOf(hash string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hash, annotationConfigHash: hash, annotationConfigSource: "file"}
	}
}

func TestNewPod(t *testing.T) {
	t.Parallel()
	always := ptr.To(corev1.ContainerRestartPolicyAlways)
	plain := Pod{UID: "uid-p", Namespace: "shop", Name: "p", GracePeriod: metav1.Duration{Duration: 30 * time.Second}}
	with := func(mod func(*Pod)) Pod {
		p := plain
		mod(&p)
		return p
	}
	tests := []struct {
		name string
		pod  *corev1.Pod
		want Pod
	}{
		{name: "nothing set", pod: newAPIPod("p"), want: plain},
		{name: "a priority", pod: newAPIPod("p", priority(-7)), want: with(func(p *Pod) { p.Priority = -7 })},
		{name: "the number wins over the class", pod: newAPIPod("p", priority(5), class("system-node-critical")), want: with(func(p *Pod) { p.Priority = 5 })},
		{name: "class without number: node", pod: newAPIPod("p", class("system-node-critical")), want: with(func(p *Pod) { p.Priority = 2000001000 })},
		{name: "class without number: cluster", pod: newAPIPod("p", class("system-cluster-critical")), want: with(func(p *Pod) { p.Priority = 2000000000 })},
		{name: "class that only the API knows", pod: newAPIPod("p", class("gold")), want: plain},
		{name: "succeeded", pod: newAPIPod("p", phase(corev1.PodSucceeded)), want: with(func(p *Pod) { p.Finished = true })},
		{name: "failed", pod: newAPIPod("p", phase(corev1.PodFailed)), want: with(func(p *Pod) { p.Finished = true })},
		{name: "running", pod: newAPIPod("p", phase(corev1.PodRunning)), want: plain},
		{name: "mirror pod", pod: newAPIPod("p", mirrorOf("hash")), want: with(func(p *Pod) { p.Static, p.ConfigHash = true, "hash" })},
		{name: "pod from the API has a source too", want: plain, pod: newAPIPod("p", func(p *corev1.Pod) {
			p.Annotations = map[string]string{annotationConfigSource: "api"}
		})},
		{name: "being deleted with less time", want: with(func(p *Pod) { p.GracePeriod.Duration = 3 * time.Second }), pod: newAPIPod("p", func(p *corev1.Pod) {
			p.DeletionGracePeriodSeconds = ptr.To[int64](3)
		})},
		{name: "grace that overflows", want: with(func(p *Pod) { p.GracePeriod.Duration = math.MaxInt32 * time.Second }), pod: newAPIPod("p", func(p *corev1.Pod) {
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](math.MaxInt64)
		})},
		{name: "sidecars", want: with(func(p *Pod) { p.Sidecars = []string{"proxy", "logs"} }), pod: newAPIPod("p", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "proxy", RestartPolicy: always}, {Name: "migrate"}, {Name: "logs", RestartPolicy: always}}
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kept := must.Get(strip(tt.pod))(t)
			for from, pod := range map[string]*corev1.Pod{"the API": tt.pod, "the cache": kept.(*corev1.Pod)} {
				if diff := cmp.Diff(tt.want, newPod(pod)); diff != "" {
					t.Errorf("from %s (-want +got):\n%s", from, diff)
				}
			}
		})
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	index := NewIndex([]Pod{
		{UID: "old", Namespace: "shop", Name: "db-0", Priority: 1},
		{UID: "mirror", ConfigHash: "hash", Namespace: "kube-system", Name: "etcd-n", Priority: 2, Static: true},
		{Namespace: "kube-system", Name: "proxy-n", Priority: 3, Static: true},
		{Namespace: "kube-system", Name: "proxy-n", Priority: 9, Static: true},
		{Namespace: "kube-system", Name: "proxy-n", Priority: 4, Static: true},
		{UID: "forged", ConfigHash: "old", Namespace: "zz", Name: "mirror", Priority: 5, Static: true},
	})
	tests := []struct {
		name               string
		uid                types.UID
		namespace, podName string
		want               int32
		missing            bool
	}{
		{name: "by uid", uid: "old", namespace: "shop", podName: "db-0", want: 1},
		{name: "static by the hash", uid: "hash", namespace: "kube-system", podName: "etcd-n", want: 2},
		{name: "newer pod of a StatefulSet", uid: "new", namespace: "shop", podName: "db-0", want: 1},
		{name: "static by the name, the highest of two files", uid: "x", namespace: "kube-system", podName: "proxy-n", want: 9},
		{name: "same name in another namespace", uid: "x", namespace: "other", podName: "db-0", missing: true},
	}
	for _, tt := range tests {
		got, found := index.Find(tt.uid, tt.namespace, tt.podName)
		if found == tt.missing || got.Priority != tt.want {
			t.Errorf("%s: got priority %d, found %t", tt.name, got.Priority, found)
		}
	}
}

func TestUnknownPriority(t *testing.T) {
	t.Parallel()
	if got := UnknownPriority("kube-system"); got != 2000000000 {
		t.Errorf("in kube-system: %d, want that of class system-cluster-critical", got)
	}
	if got := UnknownPriority("shop"); got != math.MinInt32 {
		t.Errorf("elsewhere: %d, want the lowest", got)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

func newCheckpoint(t *testing.T, dir string) *Checkpoint {
	t.Helper()
	c := must.Get(New(dir, nil, node))(t)
	return c
}

const etcd = `apiVersion: v1
kind: Pod
metadata: {name: etcd, namespace: kube-system}
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 11
  containers: [{name: etcd, image: etcd}]
`

func TestStaticPods(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, dir, "etcd.yaml", etcd)
	write(t, dir, "web.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","uid":"own"},"spec":{"priority":70}}`)
	write(t, dir, "copy.yaml.bak", strings.Replace(etcd, "name: etcd,", "name: copy,", 1))
	write(t, dir, ".hidden.yaml", strings.Replace(etcd, "name: etcd,", "name: hidden,", 1))
	write(t, dir, "service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n")
	write(t, dir, "nameless.yaml", "apiVersion: v1\nkind: Pod\n")
	write(t, dir, "broken.yaml", "{")
	write(t, dir, "large.yaml", strings.Repeat(" ", MaxManifest)+"\n"+etcd)
	write(t, elsewhere, "linked.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: linked}\n")
	for link, target := range map[string]string{"linked.yaml": "linked.yaml", "dangling.yaml": "missing"} {
		must.Do(t, os.Symlink(filepath.Join(elsewhere, target), filepath.Join(dir, link)))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700))
	c := newCheckpoint(t, t.TempDir())
	c.SetStaticPodPath(dir)
	want := []Pod{
		{Namespace: "default", Name: "linked-node-1", Static: true, GracePeriod: metav1.Duration{Duration: 30 * time.Second}},
		{Namespace: "default", Name: "web-node-1", ConfigHash: "own", Priority: 70, Static: true, GracePeriod: metav1.Duration{Duration: 30 * time.Second}},
		{Namespace: "kube-system", Name: "copy-node-1", Priority: 2000001000, Static: true, GracePeriod: metav1.Duration{Duration: 11 * time.Second}},
		{Namespace: "kube-system", Name: "etcd-node-1", Priority: 2000001000, Static: true, GracePeriod: metav1.Duration{Duration: 11 * time.Second}},
	}
	if diff := cmp.Diff(want, c.Pods()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}

	c.SetStaticPodPath(filepath.Join(dir, "etcd.yaml"))
	if diff := cmp.Diff(want[3:], c.Pods()); diff != "" {
		t.Errorf("pods of a single file (-want +got):\n%s", diff)
	}
	c.SetStaticPodPath("")
	if got := c.Pods(); len(got) != 0 {
		t.Errorf("got %v without a path, want none", got)
	}
}

func TestStaticPodsFollowTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "manifests")
	c := newCheckpoint(t, t.TempDir())
	c.SetStaticPodPath(path)
	expect := func(when string, want ...int32) {
		t.Helper()
		got := c.Priorities()
		slices.Sort(got)
		is.True(t, slices.Equal(got, want), "%s: got priorities %v, want %v", when, got, want)
	}
	expect("folder is missing")
	must.Do(t, os.Mkdir(path, 0o700))
	write(t, path, "etcd.yaml", etcd)
	expect("file is there", 2000001000)
	write(t, path, "etcd.yaml", strings.Replace(etcd, "system-node-critical", "system-cluster-critical", 1))
	expect("file has changed", 2000000000)
	must.Do(t, os.Remove(filepath.Join(path, "etcd.yaml")))
	expect("file is gone")
	write(t, path, "etcd.yaml", etcd)
	expect("file is back", 2000001000)
	// The folder cannot be read, but its pods still run. Root can read any folder, so a name that
	// is too long simulates the broken disk.
	c.static.path = filepath.Join(dir, strings.Repeat("x", 300))
	expect("folder cannot be read", 2000001000)
}

func TestMirrorPodsAndManifestsAreOnePod(t *testing.T) {
	t.Parallel()
	etcd := Pod{Namespace: "kube-system", Name: "etcd-n", Static: true, GracePeriod: metav1.Duration{Duration: time.Second}}
	mirror := etcd
	mirror.UID, mirror.ConfigHash, mirror.Priority = "mirror", "hash", 1000
	critical := etcd
	critical.Priority = 2000001000
	merged := mirror
	merged.Priority = critical.Priority
	// An ordinary pod with the same name is another pod.
	ordinary := Pod{UID: "u", Namespace: "kube-system", Name: "etcd-n", Priority: 5}
	tests := []struct {
		name                     string
		fromAPI, manifests, want []Pod
	}{
		{name: "the class of the mirror pod is known", fromAPI: []Pod{mirror}, manifests: []Pod{etcd}, want: []Pod{mirror}},
		{name: "the manifest is newer", fromAPI: []Pod{mirror}, manifests: []Pod{critical}, want: []Pod{merged}},
		{name: "no mirror pod", manifests: []Pod{critical}, want: []Pod{critical}},
		{name: "no manifest", fromAPI: []Pod{mirror}, want: []Pod{mirror}},
		{name: "another pod of that name", fromAPI: []Pod{ordinary}, manifests: []Pod{critical}, want: []Pod{critical, ordinary}},
	}
	for _, tt := range tests {
		before := slices.Clone(tt.fromAPI)
		if diff := cmp.Diff(tt.want, merge(tt.fromAPI, tt.manifests)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(before, tt.fromAPI); diff != "" {
			t.Errorf("%s: the stored pods differ (-before +after):\n%s", tt.name, diff)
		}
	}
}

// stored returns the content of the checkpoint file in a folder; empty if there is no file.
func stored(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

// running starts a checkpoint in a synctest bubble and stops it when the test ends.
func running(t *testing.T, dir string, client *fake.Clientset) *Checkpoint {
	t.Helper()
	c, err := New(dir, client, node)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// passes advances the time of a synctest bubble.
func passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestPodsOfTheAPIAreStored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(newAPIPod("web", priority(7)), newAPIPod("done", priority(9), phase(corev1.PodSucceeded)),
			newAPIPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }))
		var selectors []string
		client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			selectors = append(selectors, a.(clienttesting.ListAction).GetListRestrictions().Fields.String())
			return false, nil, nil
		})
		c := running(t, dir, client)
		passes(writeDelay / 2)
		if got := c.Priorities(); !slices.Equal(got, []int32{7}) {
			t.Errorf("priorities are %v, want the priorities of the pods of this node that have not ended", got)
		}
		if got := stored(t, dir); got != "" {
			t.Errorf("stored immediately, want after %s:\n%s", writeDelay, got)
		}
		passes(writeDelay)
		for _, s := range selectors {
			is.True(t, s == "spec.nodeName="+node, "listed pods with selector %q", s)
		}
		if diff := cmp.Diff([]string{"done", "web"}, names(newCheckpoint(t, dir))); diff != "" {
			t.Errorf("stored pods (-want +got):\n%s", diff)
		}

		pods := client.CoreV1().Pods("shop")
		must.Get(pods.Create(t.Context(), newAPIPod("new"), metav1.CreateOptions{}))(t)
		must.Do(t, pods.Delete(t.Context(), "web", metav1.DeleteOptions{}))
		passes(2 * writeDelay)
		if diff := cmp.Diff([]string{"done", "new"}, names(newCheckpoint(t, dir))); diff != "" {
			t.Errorf("stored pods after changes (-want +got):\n%s", diff)
		}
	})
}

func names(c *Checkpoint) []string {
	var all []string
	for _, p := range c.Pods() {
		all = append(all, p.Name)
	}
	return all
}

func TestWritesAreFew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(newAPIPod("web"))
		running(t, dir, client)
		passes(2 * writeDelay)
		before := must.Get(os.Stat(filepath.Join(dir, fileName)))(t)
		pods := client.CoreV1().Pods("shop")
		for _, message := range []string{"a", "b"} {
			pod := newAPIPod("web", phase(corev1.PodRunning))
			pod.Status.Message = message
			must.Get(pods.Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
			passes(2 * writeDelay)
		}
		after := must.Get(os.Stat(filepath.Join(dir, fileName)))(t)
		is.True(t, os.SameFile(before, after), "the file was written again, but nothing in it has changed")
	})
}

func TestWithoutTheAPITheStoredPodsStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, err := encode(node, []Pod{{UID: "u", Namespace: "shop", Name: "web", Priority: 7, GracePeriod: metav1.Duration{Duration: 90 * time.Second}, Sidecars: []string{"proxy"}}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, fileName, string(data))
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		client.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(nil, errors.New("connection refused")))
		c := running(t, dir, client)
		passes(10 * time.Minute)
		want := []Pod{{UID: "u", Namespace: "shop", Name: "web", Priority: 7, GracePeriod: metav1.Duration{Duration: 90 * time.Second}, Sidecars: []string{"proxy"}}}
		if diff := cmp.Diff(want, c.Pods()); diff != "" {
			t.Errorf("pods (-want +got):\n%s", diff)
		}
	})
	if got := stored(t, dir); got != string(data) {
		t.Errorf("the file was written without a response of the API:\n%s", got)
	}
}

func TestChangesAreStoredAtTheEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := must.Get(New(dir, fake.NewClientset(newAPIPod("web")), node))(t)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		passes(writeDelay / 2)
		cancel()
		must.Do(t, <-done)
	})
	if diff := cmp.Diff([]string{"web"}, names(newCheckpoint(t, dir))); diff != "" {
		t.Errorf("stored pods (-want +got):\n%s", diff)
	}
}

func TestAFailedWriteIsRepeated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A folder at the path of the new file simulates a full disk.
	must.Do(t, os.Mkdir(files.Temporary(filepath.Join(dir, fileName)), 0o700))
	write(t, files.Temporary(filepath.Join(dir, fileName)), "x", "x")
	write(t, dir, fileName, `{"version":1,"node":"Node-1","pods":[]}`)
	synctest.Test(t, func(t *testing.T) {
		running(t, dir, fake.NewClientset(newAPIPod("web")))
		passes(3 * writeDelay)
		if got := names(newCheckpoint(t, dir)); len(got) != 0 {
			t.Errorf("stored %v, want the old file unchanged", got)
		}
		must.Do(t, os.RemoveAll(files.Temporary(filepath.Join(dir, fileName))))
		passes(2 * writeDelay)
		if diff := cmp.Diff([]string{"web"}, names(newCheckpoint(t, dir))); diff != "" {
			t.Errorf("stored pods (-want +got):\n%s", diff)
		}
	})
}

func TestADamagedFileIsKeptAside(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"cut off":     `{"version":1,"node":"Node-1","pods":[{"name"`,
		"empty":       "",
		"newer agent": `{"version":2,"node":"Node-1"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, fileName, content)
			c, err := New(dir, nil, node)
			is.True(t, err != nil, "got no error")
			if got := c.Pods(); len(got) != 0 {
				t.Errorf("got pods %v, want none", got)
			}
			if aside, err := os.ReadFile(filepath.Join(dir, fileName+damagedSuffix)); err != nil || string(aside) != content {
				t.Errorf("kept aside %q with error %v, want %q", aside, err, content)
			}
			if _, err := New(dir, nil, node); err != nil {
				t.Errorf("the next start fails as well: %v", err)
			}
		})
	}
}

// TestTheNameOfTheNodeIsUnknown: an agent without a client may have the name of the machine.
func TestTheNameOfTheNodeIsUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, fileName, `{"version":1,"node":"node-9","pods":[{"name":"web","gracePeriod":"1s"}]}`)
	is.Slices(t, names(must.Get(New(dir, nil, node))(t)), []string{"web"})
}

func TestTheFolderCannotBeMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "file", "")
	c, err := New(filepath.Join(dir, "file"), nil, node)
	is.True(t, err != nil, "got no error for a folder that is a file")
	if got := c.Pods(); len(got) != 0 {
		t.Errorf("got pods %v, want none", got)
	}
}

func TestThePodsCanBeReadByAPerson(t *testing.T) {
	t.Parallel()
	data := must.Get(encode("n", []Pod{{UID: "u", Namespace: "shop", Name: "web", Priority: 7, GracePeriod: metav1.Duration{Duration: 90 * time.Second}}}))(t)
	var got map[string]any
	must.Do(t, json.Unmarshal(data, &got))
	want := map[string]any{"version": 1.0, "node": "n", "pods": []any{
		map[string]any{"uid": "u", "namespace": "shop", "name": "web", "priority": 7.0, "gracePeriod": "1m30s"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}
