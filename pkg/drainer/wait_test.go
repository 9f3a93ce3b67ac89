// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package drainer

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const manager = "drainer-test"

func paused(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Spec.Paused = true
	return nm
}

// TestWait lets something happen to a maintenance ten seconds after the beginning of a wait of one
// minute.
func TestWait(t *testing.T) {
	blocked := inStage(drain, "Drained=False DrainBlocked", "Progressing=False Blocked")
	other := inStage(drain, "Drained=True DrainComplete")
	other.UID = "uid-of-another"
	for name, test := range map[string]struct {
		// nm is the maintenance when the wait begins; nil if it was deleted. later is what it
		// becomes; nil if it stays.
		nm, later *v1alpha1.NodeMaintenance
		deleted   bool
		state     State
		err       error
		// text is a part of the error.
		text string
	}{
		"drained from the beginning": {nm: inStage(drain, "Drained=True DrainComplete"), state: Drained},
		"drained later":              {nm: inStage(drain), later: inStage(drain, "Drained=True DrainComplete"), state: Drained},
		"drained with kept pods": {
			nm: inStage(drain), later: inStage(drain, "Drained=True DrainCompleteWithPodsLeft"), state: Drained,
			err: ErrPodsKept, text: "nodemaintenance nm is drained, but pods are kept: because",
		},
		"the time is over": {nm: inStage(drain), state: Drained, err: ErrTimeout, text: "nodemaintenance nm is not drained yet"},
		"blocked": {
			nm: inStage(drain), later: blocked, state: Drained, err: ErrBlocked,
			text: "nodemaintenance nm is not drained yet: a user must act (Blocked: because)",
		},
		"paused": {
			nm: inStage(drain), later: paused(blocked.DeepCopy()), state: Drained, err: ErrPaused,
			text: "nodemaintenance nm is not drained yet: the maintenance is paused",
		},
		"completed by another client": {
			nm: inStage(drain), later: inStage(complete), state: Drained, err: ErrEnded, text: "nodemaintenance nm was completed before it was drained",
		},
		"deleted by another client": {
			nm: inStage(drain), deleted: true, state: Drained, err: ErrEnded, text: "nodemaintenance nm was deleted before it was drained",
		},
		"deleted before the wait":  {state: Drained, err: ErrEnded, text: "nodemaintenance nm was deleted before it was drained"},
		"recreated":                {nm: other, state: Drained, err: ErrEnded, text: "nodemaintenance nm was deleted before it was drained"},
		"released":                 {nm: inStage(complete), later: released(inStage(complete)), state: Complete},
		"deleted instead":          {nm: inStage(complete), deleted: true, state: Complete},
		"deleted, and waited for":  {nm: inStage(complete), deleted: true, state: Deleted},
		"a release that is failed": {nm: inStage(complete, "Progressing=False Complete"), state: Complete, err: ErrBlocked, text: "is not complete yet"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			client := fake.NewClientset()
			nodeMaintenances := client.MaintenanceV1alpha1().NodeMaintenances()
			if test.nm != nil {
				must.Get(nodeMaintenances.Create(t.Context(), test.nm, metav1.CreateOptions{}))(t)
			}
			time.AfterFunc(10*time.Second, func() {
				switch {
				case test.deleted:
					must.Do(t, nodeMaintenances.Delete(t.Context(), "nm", metav1.DeleteOptions{}))
				case test.later != nil:
					must.Get(nodeMaintenances.Update(t.Context(), test.later, metav1.UpdateOptions{}))(t)
				}
			})
			seen := 0
			d := &Drainer{Client: client, Progress: func(*v1alpha1.NodeMaintenance) { seen++ }}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			last, err := d.Wait(ctx, inStage(drain), test.state)

			is.True(t, errors.Is(err, test.err) && (err == nil) == (test.err == nil), "got the error %v, want %v", err, test.err)
			is.True(t, err == nil || strings.Contains(err.Error(), test.text), "got the error %q, want %q", err, test.text)
			gone := test.deleted || test.nm == nil || test.nm.UID != "uid"
			is.True(t, (last == nil) == gone, "got the last state %v", last)
			is.True(t, (seen > 0) == (test.nm != nil && test.nm.UID == "uid"), "Progress was called %d times", seen)
		})
	}
}

// TestWaitLooksOnceMore waits with a watch that stays silent until the time is over.
func TestWaitLooksOnceMore(t *testing.T) {
	another := inStage(drain)
	another.UID = "uid-of-another"
	for name, test := range map[string]struct {
		// now is the maintenance at the end; nil if it was deleted.
		now   *v1alpha1.NodeMaintenance
		state State
		err   error
	}{
		"drained":                     {now: inStage(drain, "Drained=True DrainComplete"), state: Drained},
		"drained with kept pods":      {now: inStage(drain, "Drained=True DrainCompleteWithPodsLeft"), state: Drained, err: ErrPodsKept},
		"not drained":                 {now: inStage(drain), state: Drained, err: ErrTimeout},
		"completed by another client": {now: inStage(complete), state: Drained, err: ErrEnded},
		"deleted by another client":   {state: Drained, err: ErrEnded},
		"deleted, and waited for":     {state: Deleted},
		"recreated":                   {now: another, state: Drained, err: ErrEnded},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			client := fake.NewClientset()
			if test.now != nil {
				must.Get(client.MaintenanceV1alpha1().NodeMaintenances().Create(t.Context(), test.now, metav1.CreateOptions{}))(t)
			}
			silent := func(ctx context.Context, nm *v1alpha1.NodeMaintenance, look func(*v1alpha1.NodeMaintenance) (bool, error)) error {
				must.Get(look(nm))(t)
				<-ctx.Done()
				return ctx.Err()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			last, err := (&Drainer{Client: client, Follow: silent}).Wait(ctx, inStage(drain), test.state)
			is.True(t, errors.Is(err, test.err) && (err == nil) == (test.err == nil), "got the error %v, want %v", err, test.err)
			is.True(t, (last == nil) == (test.now == nil || test.now == another), "got the last state %v", last)
		})
	}
}

// TestWaitEndsWithItsContext tests that an interrupted wait is not taken for a timeout.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Drainer{Client: fake.NewClientset(inStage(drain))}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := d.Wait(ctx, inStage(drain), Drained)
		is.True(t, errors.Is(err, context.Canceled), "got the error %v", err)
	})
}

// TestWaitWithoutRights tests that an error which lasts ends the wait.
func TestWaitWithoutRights(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), "nm", errors.New("no"))
	})
	_, err := (&Drainer{Client: client}).Wait(t.Context(), inStage(drain), Drained)
	is.True(t, apierrors.IsForbidden(err), "got the error %v", err)
}

// TestWaitWithoutAPI tests that a missing API is not taken for a deletion, neither at the beginning
// of a wait nor at its end.
func TestWaitWithoutAPI(t *testing.T) {
	notServed := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", v1alpha1.Resource("nodemaintenances"), "nm", "404 page not found", 0, true)
	silent := func(ctx context.Context, nm *v1alpha1.NodeMaintenance, look func(*v1alpha1.NodeMaintenance) (bool, error)) error {
		_, err := look(nm)
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}
	for name, test := range map[string]struct {
		follow Follow
		isWant func(error) bool
	}{
		"from the beginning": {isWant: apierrors.IsNotFound},
		"at the end":         {follow: silent, isWant: func(err error) bool { return errors.Is(err, ErrTimeout) }},
	} {
		for _, state := range []State{Drained, Complete, Deleted} {
			bubble.Run(t, name+" of a wait for "+string(state), func(t *testing.T) {
				client := fake.NewClientset()
				client.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, notServed
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				last, err := (&Drainer{Client: client, Follow: test.follow}).Wait(ctx, inStage(drain), state)
				is.True(t, test.isWant(err) && last != nil, "got %v, %v", last, err)
			})
		}
	}
}

// TestVerbs tests what is written.
func TestVerbs(t *testing.T) {
	for name, test := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		act  func(*Drainer, *v1alpha1.NodeMaintenance) error
		want string
	}{
		"cordon nodes": {nm: ForNodes("a", "b"), act: result((*Drainer).Cordon), want: "create a- Cordon a,b"},
		"drain nodes":  {nm: ForNodes("a"), act: result((*Drainer).Drain), want: "create a- Drain a"},
		"cordon":       {nm: inStage(idle), act: result((*Drainer).Cordon), want: `patch nm {"metadata":{"uid":"uid"},"spec":{"stage":"Cordon"}}`},
		"drain":        {nm: inStage(cordon), act: result((*Drainer).Drain), want: `patch nm {"metadata":{"uid":"uid"},"spec":{"stage":"Drain"}}`},
		"complete":     {nm: inStage(drain), act: result((*Drainer).Complete), want: `patch nm {"metadata":{"uid":"uid"},"spec":{"stage":"Complete"}}`},
		"pause":        {nm: inStage(drain), act: result((*Drainer).Pause), want: `patch nm {"metadata":{"uid":"uid"},"spec":{"paused":true}}`},
		"resume":       {nm: paused(inStage(drain)), act: result((*Drainer).Resume), want: `patch nm {"metadata":{"uid":"uid"},"spec":{"paused":false}}`},
		"cancel": {
			nm: inStage(drain), act: func(d *Drainer, nm *v1alpha1.NodeMaintenance) error { return d.Cancel(t.Context(), nm) }, want: "delete nm uid",
		},
	} {
		for _, dryRun := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				client := fake.NewClientset()
				if test.nm.UID != "" {
					must.Get(client.MaintenanceV1alpha1().NodeMaintenances().Create(t.Context(), test.nm.DeepCopy(), metav1.CreateOptions{}))(t)
					client.ClearActions()
				}
				must.Do(t, test.act(&Drainer{Client: client, FieldManager: manager, DryRun: dryRun}, test.nm))
				got, as, dry := written(t, client)
				is.Equal(t, got, test.want)
				is.True(t, dry == dryRun, "dry run is %t", dry)
				is.True(t, as == manager || strings.HasPrefix(got, "delete"), "the field manager is %q", as)
			})
		}
	}
}

// TestVerbsNeedAStoredMaintenance tests that only Cordon and Drain take a maintenance that the API
// does not know.
func TestVerbsNeedAStoredMaintenance(t *testing.T) {
	client := fake.NewClientset()
	d := &Drainer{Client: client}
	for name, verb := range map[string]func(*Drainer, *v1alpha1.NodeMaintenance) error{
		"complete": result((*Drainer).Complete),
		"pause":    result((*Drainer).Pause),
		"cancel":   func(d *Drainer, nm *v1alpha1.NodeMaintenance) error { return d.Cancel(t.Context(), nm) },
		"wait": func(d *Drainer, nm *v1alpha1.NodeMaintenance) error {
			_, err := d.Wait(t.Context(), nm, Drained)
			return err
		},
	} {
		err := verb(d, ForNodes("a"))
		is.True(t, err != nil && strings.Contains(err.Error(), "has no UID"), "%s: got the error %v", name, err)
	}
	is.Equal(t, len(client.Actions()), 0, "requests")
}

func result(verb func(*Drainer, context.Context, *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error)) func(*Drainer, *v1alpha1.NodeMaintenance) error {
	return func(d *Drainer, nm *v1alpha1.NodeMaintenance) error {
		_, err := verb(d, context.Background(), nm)
		return err
	}
}

// written describes the only request that a client has sent.
func written(t *testing.T, client *fake.Clientset) (what, fieldManager string, dryRun bool) {
	t.Helper()
	actions := client.Actions()
	must.True(t, len(actions) == 1, "got %d requests", len(actions))
	switch a := actions[0].(type) {
	case clienttesting.CreateActionImpl:
		nm := a.Object.(*v1alpha1.NodeMaintenance)
		var names []string
		for _, term := range nm.Spec.NodeSelector.NodeSelectorTerms {
			names = append(names, term.MatchFields[0].Values...)
		}
		return "create " + nm.GenerateName + " " + string(nm.Spec.Stage) + " " + strings.Join(names, ","), a.CreateOptions.FieldManager, len(a.CreateOptions.DryRun) > 0
	case clienttesting.PatchActionImpl:
		return "patch " + a.Name + " " + string(a.Patch), a.PatchOptions.FieldManager, len(a.PatchOptions.DryRun) > 0
	case clienttesting.DeleteActionImpl:
		return "delete " + a.Name + " " + string(*a.DeleteOptions.Preconditions.UID), "", len(a.DeleteOptions.DryRun) > 0
	}
	t.Fatalf("got the request %v", actions[0])
	return "", "", false
}

func TestSelectLabels(t *testing.T) {
	selector := must.Get(SelectLabels("pool=blue,zone notin (b,a),gpu"))(t)
	var got []string
	for _, r := range selector.NodeSelectorTerms[0].MatchExpressions {
		got = append(got, strings.TrimSpace(r.Key+" "+string(r.Operator)+" "+strings.Join(r.Values, ",")))
	}
	is.Slices(t, got, []string{"gpu Exists", "pool In blue", "zone NotIn a,b"})
	_, err := SelectLabels("")
	is.True(t, errors.Is(err, ErrMatchesAll), "got the error %v", err)
	_, err = SelectLabels("pool in")
	is.True(t, err != nil && !errors.Is(err, ErrMatchesAll), "got the error %v", err)
}
