// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/agent/local/pods"
)

// fakeKubelet handles the static pod folder like the kubelet: it runs the pods of the manifests,
// terminates a pod within its grace period when its manifest is gone, and removes the mirror pod a
// second later. If it is started while containers without a manifest run, it kills these containers
// immediately.
type fakeKubelet struct {
	t    *testing.T
	dir  string
	kube *kubefake.Clientset
	// every is the interval between two lists of the folder.
	every time.Duration

	mu   sync.Mutex
	pods map[string]*fakePod
	// parsed has the pods of all manifests that were in the folder, by UID.
	parsed map[types.UID]*corev1.Pod
	// log has the events of the containers, in order.
	log      []string
	starts   int
	down     bool
	unwell   bool
	runtime  error
	mirrored int
}

// fakePod is a pod of the fakeKubelet.
type fakePod struct {
	uid         types.UID
	api         types.UID
	grace       time.Duration
	running     bool
	terminating time.Time
	stopped     time.Time
}

func newFakeKubelet(t *testing.T, dir string, kube *kubefake.Clientset) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{
		t: t, dir: dir, kube: kube, every: 100 * time.Millisecond, starts: 1,
		pods: map[string]*fakePod{}, parsed: map[types.UID]*corev1.Pod{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			k.tick()
			select {
			case <-ctx.Done():
				return
			case <-time.After(k.every):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// desired returns the pods of the manifests in the folder. A test may list the folder 70,000 times,
// so each content is parsed once.
func (k *fakeKubelet) desired() map[string]*corev1.Pod {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil
	}
	desired := map[string]*corev1.Pod{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		path := filepath.Join(k.dir, entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		uid := types.UID(hashOf(append(data, path...))[:16])
		pod := k.parsed[uid]
		if pod == nil {
			if pod, err = pods.ParseManifest(data, node); err != nil {
				continue
			}
			pod.UID = uid
			k.parsed[uid] = pod
		}
		desired[pod.Name] = pod
	}
	return desired
}

func (k *fakeKubelet) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return
	}
	desired := k.desired()
	now := time.Now()
	for name, pod := range k.pods {
		want := desired[name]
		if pod.running && (want == nil || want.UID != pod.uid) && pod.terminating.IsZero() {
			pod.terminating = now
			k.note("TERM", name)
		}
		if pod.running && !pod.terminating.IsZero() && now.Sub(pod.terminating) >= pod.grace {
			pod.running, pod.stopped = false, now
			k.note("stop", name)
		}
		switch {
		case pod.running:
		case want != nil:
			k.unmirror(name, pod)
			delete(k.pods, name)
		case now.Sub(pod.stopped) >= time.Second:
			k.unmirror(name, pod)
			delete(k.pods, name)
		}
	}
	for name, want := range desired {
		if k.pods[name] == nil {
			k.pods[name] = &fakePod{uid: want.UID, grace: time.Duration(pods.GraceSeconds(want)) * time.Second, running: true}
			k.note("run", name)
		}
		if pod := k.pods[name]; pod.api == "" {
			k.mirrorPod(pod, want)
		}
	}
}

func (k *fakeKubelet) note(what, name string) {
	k.log = append(k.log, what+" "+strings.TrimSuffix(name, "-node-7"))
}

func (k *fakeKubelet) mirrorPod(pod *fakePod, want *corev1.Pod) {
	k.mirrored++
	pod.api = types.UID(fmt.Sprintf("api-%d", k.mirrored))
	object := mirror(strings.TrimSuffix(want.Name, "-node-7"), func(p *corev1.Pod) {
		p.UID, p.Labels, p.Spec = pod.api, want.Labels, want.Spec
		p.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.uid)
	})
	if err := k.kube.Tracker().Add(object); err != nil {
		k.t.Error(err)
	}
}

func (k *fakeKubelet) unmirror(name string, pod *fakePod) {
	if pod.api == "" {
		return
	}
	err := k.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", name)
	if err != nil && !apierrors.IsNotFound(err) {
		k.t.Error(err)
	}
	pod.api = ""
}

// stop ends the process; the containers continue to run.
func (k *fakeKubelet) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
}

// restart restarts the process, which kills containers without a manifest.
func (k *fakeKubelet) restart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	desired := k.desired()
	k.down = false
	k.starts++
	for name, pod := range k.pods {
		if pod.running && desired[name] == nil {
			pod.running, pod.stopped = false, time.Now()
			k.note("KILL", name)
		}
	}
}

// boot reboots the machine, which ends all containers.
func (k *fakeKubelet) boot() {
	k.mu.Lock()
	for _, pod := range k.pods {
		pod.running, pod.stopped = false, time.Now()
	}
	k.mu.Unlock()
	k.restart()
}

func (k *fakeKubelet) set(mod func(*fakeKubelet)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	mod(k)
}

// happened returns the log.
func (k *fakeKubelet) happened() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

// uid returns the UID of the running pod with a name, or "" if it does not run.
func (k *fakeKubelet) uid(name string) types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pod := k.pods[name+"-node-7"]; pod != nil && pod.running {
		return pod.uid
	}
	return ""
}

func (k *fakeKubelet) Check(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down || k.unwell {
		return errors.New("connection refused")
	}
	return nil
}

func (k *fakeKubelet) Instance(context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return "", errors.New("not running")
	}
	return fmt.Sprint("instance-", k.starts), nil
}

func (k *fakeKubelet) Running(_ context.Context, uid string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, pod := range k.pods {
		if pod.running && string(pod.uid) == uid {
			return true, k.runtime
		}
	}
	return false, k.runtime
}
