// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	typed "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestRun starts the controller, which reacts to events only.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("low", "one", 10), newPod("high", "two", 5000))
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.run(2)
		}()
		f.ticking("low is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"low"}) })
		f.deletePod("low")
		f.ticking("high is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"high"}) })
		f.deletePod("high")
		f.ticking("the maintenance is drained", func() bool { return isDrained(f.nm("m")) })
		f.enter("m", stageComplete)
		f.ticking("the maintenance is complete", func() bool { return len(f.nm("m").Finalizers) == 0 })
		f.wantCordon("one", false)
		f.wantCordon("two", false)
	})
}

// TestSilentAuthorizerDelaysNoOtherDrain has the authorizer give no answer about one of two users.
// The drain of the other user goes on with a single worker, and that of the first user as soon as
// the authorizer answers.
func TestSilentAuthorizerDelaysNoOtherDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent, nodeWorkers = "silent", 16
		objects := []runtime.Object{
			newNode("free", inPool("free")), newPod("p", "free", 0), newMaintenance("goes-on", selecting("free")),
		}
		for i := range 2 * nodeWorkers {
			name := fmt.Sprintf("%s-%02d", silent, i)
			objects = append(objects, newNode(name,
				inPool(name)), newPod(name, name, 0), newMaintenance(name, selecting(name),
				func(nm *maintenancev1alpha1.NodeMaintenance) { nm.Spec.RequestedBy.Username = silent }))
		}
		f := newFixture(t)
		f.rights.silent, f.rights.answer = silent, make(chan struct{})
		for _, o := range objects {
			f.create(o)
		}
		start := time.Now()
		go f.run(1)
		f.ticking("the pod of the other user has an Evacuation",
			func() bool { return slices.Equal(f.evacuating(), []string{"p"}) })
		close(f.rights.answer)
		f.ticking("all pods are asked to leave", func() bool { return len(f.evacuating()) == 1+2*nodeWorkers })
		// A review fails after ten seconds. The drain has not waited for one.
		if took := time.Since(start); took >= 10*time.Second {
			t.Errorf("the drain took %s", took)
		}
	})
}

// run runs the controllers of nodes and of maintenances until the test ends.
func (f *fixture) run(workers int) {
	var wg sync.WaitGroup
	wg.Go(func() { f.nodes.Run(f.ctx, workers) })
	wg.Go(func() { f.Controller.rights.Run(f.ctx) })
	wg.Go(func() { f.Controller.Run(f.ctx, workers) })
	wg.Wait()
}

// ticking waits for a condition while the clock runs.
func (f *fixture) ticking(what string, condition func() bool) {
	f.t.Helper()
	f.eventually(what, func() bool {
		f.wait(debounce)
		return condition()
	})
}

// hanging is a client of a server whose webhook does not answer for the Evacuations of some pods.
// Such a call takes 10 s, unless its context ends before.
type hanging struct {
	versioned.Interface

	mu sync.Mutex
	// tries counts the calls for each of these pods, longest is the longest of them.
	tries   map[string]int
	longest time.Duration
}

// hangs is in the names of these pods and of their Evacuations.
const hangs = "hangs-"

func (h *hanging) MaintenanceV1alpha1() typed.MaintenanceV1alpha1Interface {
	return hangingGroup{h.Interface.MaintenanceV1alpha1(), h}
}

type hangingGroup struct {
	typed.MaintenanceV1alpha1Interface
	h *hanging
}

func (g hangingGroup) Evacuations(namespace string) typed.EvacuationInterface {
	return hangingEvacuations{g.MaintenanceV1alpha1Interface.Evacuations(namespace), g.h}
}

type hangingEvacuations struct {
	typed.EvacuationInterface
	h *hanging
}

func (e hangingEvacuations) Create(ctx context.Context, obj *maintenancev1alpha1.Evacuation, o metav1.CreateOptions) (*maintenancev1alpha1.Evacuation, error) {
	if err := e.h.call(ctx, obj.Spec.PodRef.Name); err != nil {
		return nil, err
	}
	return e.EvacuationInterface.Create(ctx, obj, o)
}

func (e hangingEvacuations) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*maintenancev1alpha1.Evacuation, error) {
	if err := e.h.call(ctx, name); err != nil {
		return nil, err
	}
	return e.EvacuationInterface.Patch(ctx, name, pt, data, o, subresources...)
}

// call is what happens to a call for a pod, or for the Evacuation that is named after it.
func (h *hanging) call(ctx context.Context, name string) error {
	if !strings.Contains(name, hangs) {
		return nil
	}
	begun := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries[name]++
	h.longest = max(h.longest, time.Since(begun))
	return apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
}

// TestHangingRequestsDoNotHoldBackOthers has 40 pods whose Evacuations cannot be created or joined,
// on a node that comes first, and 5 other pods.
func TestHangingRequestsDoNotHoldBackOthers(t *testing.T) {
	const broken, sound = 40, 5
	foreign := instigatedBy(foreignInstigator)
	for name, test := range map[string]struct {
		objects func(pod, node string) []runtime.Object
	}{
		"requests that create": {func(pod, node string) []runtime.Object {
			return []runtime.Object{newPod(pod, node, 0)}
		}},
		"requests that join": {func(pod, node string) []runtime.Object {
			return []runtime.Object{newPod(pod, node, 0), ourEvacuation(pod, node, foreign)}
		}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			objects := []runtime.Object{newMaintenance("m"), newNode("a"), newNode("b")}
			for i := range broken {
				objects = append(objects, test.objects(fmt.Sprintf("%s%02d", hangs, i), "a")...)
			}
			for i := range sound {
				objects = append(objects, test.objects(fmt.Sprintf("sound-%d", i), "b")...)
			}
			f := newFixture(t, objects...)
			client := &hanging{Interface: f.maintenance, tries: map[string]int{}}
			f.Controller.maintenance = client
			syncs := 0
			for f.soundEvacuating() != sound && syncs < 10 {
				syncs++
				f.authorized()
				_ = f.Controller.sync(f.ctx, "m")
				f.cached()
				_ = f.reconcileNodes()
				f.cached()
			}
			if got := f.soundEvacuating(); got != sound {
				t.Errorf("after %d syncs: %d sound pods have Evacuations, want %d; tries of the others: %v", syncs, got, sound, client.tries)
			}
			is.True(t, client.longest <= requestTimeout, "a request took %v, want at most %v", client.longest, requestTimeout)
			// Within an hour with a back-off of a minute, not a try in each sync.
			for begun := time.Now(); time.Since(begun) < time.Hour; f.wait(time.Second) {
				_ = f.Controller.sync(f.ctx, "m")
			}
			for pod, tries := range client.tries {
				is.True(t, tries <= 66, "%s was tried %d times in an hour", pod, tries)
			}
			is.True(t, len(client.tries) == broken, "%d of %d pods were tried", len(client.tries), broken)
		})
	}
}

// soundEvacuating counts the Evacuations of ours of pods whose requests do not hang.
func (f *fixture) soundEvacuating() int {
	n := 0
	for _, pod := range f.evacuating() {
		if strings.HasPrefix(pod, "sound-") {
			n++
		}
	}
	return n
}

// wantSameDecision checks that the caches of the controller do not change its decision: a
// controller without them decides the same about a maintenance.
func (f *fixture) wantSameDecision(name string) {
	f.t.Helper()
	nm, err := f.get(name)
	if apierrors.IsNotFound(err) || err == nil && maintenancev1alpha1.IsDone(nm) {
		return
	}
	if err != nil {
		f.t.Fatal(err)
	}
	remembered := f.decisionOf(nm)
	for _, node := range f.nodeList() {
		f.state.DropView(node.Name)
	}
	if fresh := f.decisionOf(nm); !reflect.DeepEqual(remembered, fresh) {
		f.t.Errorf("%s: got %+v with the caches, %+v without", name, remembered, fresh)
	}
}

// seen is the result of gathering and deciding.
type seen struct {
	status  maintenancev1alpha1.NodeMaintenanceStatus
	targets map[string][]maintenancev1alpha1.DrainPlanEntry
	unasked []string
	// unwanted are Evacuations.
	unwanted []string
}

func (f *fixture) decisionOf(nm *maintenancev1alpha1.NodeMaintenance) seen {
	f.t.Helper()
	if maintenancev1alpha1.IsEnding(nm) {
		return seen{status: f.completedStatus(nm, f.heldNodes(nm))}
	}
	g := must.Get(f.gather(f.ctx, nm))(f.t)
	l := must.Get(f.decide(g))(f.t)
	s := seen{status: *l.status.DeepCopy(), targets: map[string][]maintenancev1alpha1.DrainPlanEntry{}}
	for node, targets := range l.plan.Targets {
		s.targets[node] = targets.Entries
	}
	for _, n := range l.counts {
		for _, pod := range n.unasked {
			s.unasked = append(s.unasked, pod.Name)
		}
		for _, e := range n.unwanted {
			s.unwanted = append(s.unwanted, e.Name)
		}
	}
	return s
}

// TestEveryFieldOfANodeStatusIsCompared changes one field after the other, those of structs one by
// one. The controller would never write a field that it does not compare.
func TestEveryFieldOfANodeStatusIsCompared(t *testing.T) {
	for _, list := range []reflect.Type{reflect.TypeFor[maintenancev1alpha1.NodeMaintenanceNodeStatus](), reflect.TypeFor[maintenancev1alpha1.DrainPlanEntry]()} {
		for _, field := range fields(list) {
			a := maintenancev1alpha1.NodeMaintenanceNodeStatus{DrainTargets: []maintenancev1alpha1.DrainPlanEntry{{}}}
			b := *a.DeepCopy()
			must.True(t, sameNodeStatus(&a, &b), "a copy differs")
			value := reflect.ValueOf(&b).Elem()
			if list == reflect.TypeFor[maintenancev1alpha1.DrainPlanEntry]() {
				value = reflect.ValueOf(&b.DrainTargets[0]).Elem()
			}
			change(t, value.FieldByIndex(field.Index))
			if sameNodeStatus(&a, &b) {
				t.Errorf("%s.%s is not compared", list.Name(), field.Name)
			}
		}
	}
}

// fields returns the fields of a struct, and those of a struct among them in its place.
func fields(of reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for _, field := range reflect.VisibleFields(of) {
		if field.Type.Kind() != reflect.Struct {
			out = append(out, field)
			continue
		}
		for _, inner := range fields(field.Type) {
			inner.Index = append(slices.Clone(field.Index), inner.Index...)
			out = append(out, inner)
		}
	}
	return out
}

// change sets a field to another value.
func change(t *testing.T, field reflect.Value) {
	t.Helper()
	switch field.Kind() {
	case reflect.String:
		field.SetString("changed")
	case reflect.Int32:
		field.SetInt(7)
	case reflect.Slice:
		field.SetZero()
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	default:
		t.Fatalf("no other value for a %s", field.Kind())
	}
}

// BenchmarkLook gathers and decides, without writing, for one maintenance over 5,000 nodes with
// 150,000 pods.
func BenchmarkLook(b *testing.B) {
	const nodes, podsPerNode = 5000, 30
	c, nm := largeCluster(b, nodes, podsPerNode)
	look := func() {
		g := must.Get(c.gather(b.Context(), nm))(b)
		must.Get(c.decide(g))(b)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			for n := range nodes {
				c.state.DropView(fmt.Sprintf("node-%04d", n))
			}
			look()
		}
	})
	b.Run("after a pod event", func(b *testing.B) {
		look()
		for i := 0; b.Loop(); i++ {
			c.state.DropView(fmt.Sprintf("node-%04d", i%nodes))
			look()
		}
	})
}

// TestStatusOf5000NodesFits fills the status of as many nodes and checks that it can be stored with
// all messages.
func TestStatusOf5000NodesFits(t *testing.T) {
	c, nm := largeCluster(t, 5000, 1)
	g := must.Get(c.gather(t.Context(), nm))(t)
	l := must.Get(c.decide(g))(t)
	status := l.status
	// The longest targets of a drain plan without entries of the user.
	for i := range status.NodeStatuses {
		status.NodeStatuses[i].DrainTargets = []maintenancev1alpha1.DrainPlanEntry{
			{PodType: maintenancev1alpha1.PodTypeDefault, PodPriority: maintenancev1alpha1.MaxPodPriority},
			{PodType: maintenancev1alpha1.PodTypeDaemonSet, PodPriority: maintenancev1alpha1.MaxPodPriority},
			{PodType: maintenancev1alpha1.PodTypeStatic, PodPriority: maintenancev1alpha1.MaxPodPriority},
		}
		status.NodeStatuses[i].DrainMessage = "Waiting for nodes node-0001, node-0002 and 1234 more."
	}
	full := nm.DeepCopy()
	full.Status = status
	c.keepSmall(full)
	if got := len(full.Status.NodeStatuses); got != 5000 {
		t.Fatalf("got %d node statuses, want 5000", got)
	}
	if slices.ContainsFunc(full.Status.Conditions,
		func(c metav1.Condition) bool { return c.Type == maintenancev1alpha1.ConditionNodeMessagesOmitted }) {
		t.Errorf("a status of %d bytes did not fit", full.Size())
	}
}

// largeCluster fills the caches directly: the measured code does not depend on the informers.
func largeCluster(tb testing.TB, nodes, podsPerNode int) (*Controller, *maintenancev1alpha1.NodeMaintenance) {
	tb.Helper()
	f, pods, evacuations := newController(tb)
	nm := newMaintenance("m")
	add := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	for n := range nodes {
		node := newNode(fmt.Sprintf("node-%04d", n), cordoned, ownedBy(`{"m":"uid-m"}`), func(node *corev1.Node) {
			node.UID = types.UID(fmt.Sprintf("7c1f4f0e-3a52-4b7d-9e51-%012d", n))
		})
		add(f.nodeIndexer.Add(node))
		f.selection.SetNode(node)
		for p := range podsPerNode {
			pod := newPod(fmt.Sprintf("pod-%04d-%d", n, p), node.Name, int32(p*100))
			add(pods.Add(pod))
			if p%2 == 0 {
				e := ourEvacuation(pod.Name, node.Name)
				add(evacuations.Add(runtime.Object(e)))
			}
		}
	}
	add(f.selection.SetMaintenance(nm))
	return f, nm
}
