// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestCompleteOlder(t *testing.T) {
	named := func(name string) func(*v1alpha1.NodeMaintenance) {
		return func(nm *v1alpha1.NodeMaintenance) { nm.Name = name }
	}
	completed, kept := v1alpha1.NodeMaintenanceStageComplete, v1alpha1.NodeMaintenanceStageDrain
	const boot2, boot3, boot4 = "aaaaaaaa-2fa1-11d2-883f-0016d3cca427", "bbbbbbbb-2fa1-11d2-883f-0016d3cca427", "cccccccc-2fa1-11d2-883f-0016d3cca427"
	objects := []*v1alpha1.NodeMaintenance{
		own(), own(ofBoot(otherBoot)), own(ofBoot(boot2)), own(ofBoot(boot3), byUser("jane")), own(ofBoot(boot4), stage(completed)),
		own(ofBoot(otherBoot), named("kernel")), own(ofBoot(otherBoot), named("shutdown-worker-10-6fa459ea")),
	}
	var all []runtime.Object
	for _, nm := range objects {
		all = append(all, nm)
	}
	a := newAPI(t, all...)
	n, err := a.client.CompleteOlder(t.Context(), boot)
	if n != 2 || err != nil {
		t.Errorf("CompleteOlder() = %d, %v, want 2", n, err)
	}
	for name, want := range map[string]v1alpha1.NodeMaintenanceStage{
		ownName: kept, objects[1].Name: completed, objects[2].Name: completed, objects[3].Name: kept, objects[4].Name: completed,
		"kernel": kept, "shutdown-worker-10-6fa459ea": kept,
	} {
		if got := a.maintenance(name).Spec.Stage; got != want {
			t.Errorf("%s is in stage %s, want %s", name, got, want)
		}
	}
	if got := a.count("POST /apis/authentication.k8s.io"); got != 1 {
		t.Errorf("%d requests for the own user, want one", got)
	}
	if n, err := a.client.CompleteOlder(t.Context(), boot); n != 0 || err != nil {
		t.Errorf("the second CompleteOlder() = %d, %v, want 0", n, err)
	}
}

// Each reboot creates a maintenance. The agent keeps the newest completed maintenances and deletes
// older ones.
func TestOldestMaintenancesAreDeleted(t *testing.T) {
	completed := stage(v1alpha1.NodeMaintenanceStageComplete)
	hour := func(n int) func(*v1alpha1.NodeMaintenance) {
		return func(nm *v1alpha1.NodeMaintenance) {
			nm.CreationTimestamp = metav1.Date(2026, 1, 1, 0, n, 0, 0, time.UTC)
		}
	}
	of := func(n int, modify ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
		return own(append([]func(*v1alpha1.NodeMaintenance){ofBoot(fmt.Sprintf("%08x-2fa1-11d2-883f-0016d3cca427", n)), hour(n)}, modify...)...)
	}
	var objects []runtime.Object
	for n := range 5 {
		objects = append(objects, of(n, completed))
	}
	// A user has completed the first maintenance, the second one is still active, and the third one
	// belongs to the present shutdown.
	objects = append(objects, of(20, completed, byUser("jane"), hour(0)), of(21, hour(0)), own(hour(0), completed))
	forbidden := of(22, completed, byUser("joe"), hour(0))
	a := newAPI(t, append(objects, forbidden)...)
	a.before = func(verb, path string) *apierrors.StatusError {
		if verb == http.MethodDelete && strings.HasSuffix(path, forbidden.Name) {
			return apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), forbidden.Name, errors.New("joe's"))
		}
		return nil
	}
	for range 2 {
		must.Do(t, a.client.DeleteOldest(t.Context(), boot))
	}
	var gone []string
	for _, object := range objects {
		if nm := object.(*v1alpha1.NodeMaintenance); a.maintenance(nm.Name) == nil {
			gone = append(gone, nm.Name)
		}
	}
	want := []string{of(0).Name, of(1).Name, of(20).Name}
	is.True(t, slices.Equal(gone, want), "deleted %q, want %q", gone, want)
}

func TestADeletionThatFailsIsNamed(t *testing.T) {
	var objects []runtime.Object
	for n := range 4 {
		objects = append(objects, own(ofBoot(fmt.Sprintf("%08x-2fa1-11d2-883f-0016d3cca427", n)), stage(v1alpha1.NodeMaintenanceStageComplete)))
	}
	a := newAPI(t, objects...)
	a.before = func(verb, _ string) *apierrors.StatusError {
		if verb == http.MethodDelete {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	if err := a.client.DeleteOldest(t.Context(), boot); err == nil {
		t.Error("DeleteOldest() = nil, want an error")
	}
}

func TestCompleteOlderContinuesAfterAnError(t *testing.T) {
	const boot2 = "aaaaaaaa-2fa1-11d2-883f-0016d3cca427"
	first := own(ofBoot(otherBoot))
	a := newAPI(t, first, own(ofBoot(boot2)))
	a.before = func(verb, path string) *apierrors.StatusError {
		if verb == http.MethodPatch && strings.HasSuffix(path, first.Name) {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	if n, err := a.client.CompleteOlder(t.Context(), boot); n != 1 || err == nil {
		t.Errorf("CompleteOlder() = %d, %v, want 1 and an error", n, err)
	}
}

// After a boot, a node reads only its own maintenances.
func TestOnlyOwnMaintenancesAreListed(t *testing.T) {
	const others = 7
	for name, test := range map[string]struct {
		older bool
		want  int
	}{
		"a server that selects by the node": {want: 1},
		"a server of an older version":      {older: true, want: others + 1},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{own(ofBoot(otherBoot))}
			for n := range others {
				objects = append(objects, own(func(nm *v1alpha1.NodeMaintenance) { nm.Name = fmt.Sprintf("kernel-%d", n) }))
			}
			a := newAPI(t, objects...)
			a.older = test.older
			if n, err := a.client.CompleteOlder(t.Context(), boot); n != 1 || err != nil {
				t.Errorf("CompleteOlder() = %d, %v, want 1", n, err)
			}
			if a.listed != test.want {
				t.Errorf("%d maintenances were listed, want %d", a.listed, test.want)
			}
		})
	}
}
