// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func pause(nm *maintenance.NodeMaintenance) { nm.Spec.Paused = true }

func createdPaused(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true }

func resume(nm *maintenance.NodeMaintenance) { nm.Spec.Paused = false }

// at returns a time after the start of the test, with the precision that is stored.
func at(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)).Rfc3339Copy() }

// wantPause checks the record of a pause in a response and in the stored object; by is "" if there
// must be none.
func (r *registry) wantPause(out *maintenance.NodeMaintenance, by string, since metav1.Time) {
	r.t.Helper()
	for what, nm := range map[string]*maintenance.NodeMaintenance{"answer": out, "stored object": r.get(out.Name)} {
		switch got := nm.Status.Pause; {
		case by == "" && got != nil:
			r.t.Errorf("the %s has the pause %v, want none", what, got)
		case by != "" && (got == nil || got.By != by || !got.Since.Equal(&since)):
			r.t.Errorf("the %s has the pause %v, want one by %q at %s", what, got, by, since)
		}
	}
}

func TestPauseNamesItsUser(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	t.Run("in the request that creates the maintenance", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.wantPause(r.mustCreate(bob, newMaintenance(t, "a", atStage(drain), createdPaused)), "bob", at(0))
		r.wantPause(r.mustCreate(bob, newMaintenance(t, "b", atStage(drain))), "", at(0))
	})
	t.Run("in the request that pauses it, and in none before or after", func(t *testing.T) {
		r := newRegistry(t, etcd)
		created := r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
		r.clock.SetTime(start.Add(time.Minute))
		out := r.mustUpdate(bob, "a", pause)
		r.wantPause(out, "bob", at(time.Minute))
		is.True(t, reflect.DeepEqual(out.Spec.RequestedBy, annInfo()), "requestedBy is %v, want ann", out.Spec.RequestedBy)
		is.Equal(t, out.Generation, created.Generation+1, "generation")
		r.clock.SetTime(start.Add(2 * time.Minute))
		r.wantPause(r.mustUpdate(ann, "a", pause), "bob", at(time.Minute))
		r.wantPause(r.mustUpdate(ann, "a", func(nm *maintenance.NodeMaintenance) { nm.Spec.Reason = "x" }), "bob", at(time.Minute))
		out = r.mustUpdate(ann, "a", resume)
		r.wantPause(out, "", at(0))
		is.True(t, reflect.DeepEqual(out.Spec.RequestedBy, annInfo()), "requestedBy is %v, want ann", out.Spec.RequestedBy)
	})
	t.Run("with the server as user", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
		r.wantPause(r.mustUpdate(self, "a", pause), self.Name, at(0))
	})
	t.Run("with the user who pauses again after a resume", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", atStage(drain), createdPaused))
		r.mustUpdate(ann, "a", resume)
		r.wantPause(r.mustUpdate(bob, "a", pause), "bob", at(0))
	})
	t.Run("and stays after stage Complete", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", atStage(drain), createdPaused))
		r.wantPause(r.mustUpdate(bob, "a", setStage(complete)), "ann", at(0))
	})
	t.Run("of at most 1024 bytes", func(t *testing.T) {
		r := newRegistry(t, etcd)
		long := &user.DefaultInfo{Name: strings.Repeat("é", 600)}
		r.wantPause(r.mustCreate(long, newMaintenance(t, "a", atStage(drain), createdPaused)), strings.Repeat("é", 512), at(0))
	})
}

// TestPauseIsNotForged has clients that send the record of a pause themselves, through the main
// resource and through the status.
func TestPauseIsNotForged(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	forge := func(nm *maintenance.NodeMaintenance) {
		nm.Status.Pause = &maintenance.NodeMaintenancePause{By: "mallory", Since: at(-time.Hour)}
	}
	createdForged := func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "mallory", Since: at(-time.Hour)}
	}
	remove := func(nm *maintenance.NodeMaintenance) { nm.Status.Pause = nil }
	r := newRegistry(t, etcd)
	r.wantPause(r.mustCreate(bob, newMaintenance(t, "a", atStage(drain), createdForged)), "", at(0))
	r.wantPause(r.mustUpdate(bob, "a", forge), "", at(0))
	r.wantPause(must.Get(r.updateStatus("a", forge))(t), "", at(0))
	r.wantPause(r.mustUpdate(bob, "a", func(nm *maintenance.NodeMaintenance) { pause(nm); forge(nm) }), "bob", at(0))
	r.wantPause(r.mustUpdate(ann, "a", remove), "bob", at(0))
	r.wantPause(must.Get(r.updateStatus("a", remove))(t), "bob", at(0))
	r.wantPause(must.Get(r.updateStatus("a", forge))(t), "bob", at(0))
	r.wantPause(r.mustUpdate(ann, "a", func(nm *maintenance.NodeMaintenance) { resume(nm); forge(nm) }), "", at(0))
}

// TestResumeIsProgress checks that the time of a pause does not count towards the stall timeout,
// even if no controller runs at the resume, or has seen the maintenance.
func TestResumeIsProgress(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a", atStage(drain), createdPaused))
	is.True(t, r.get("a").Status.LastProgressTimestamp == nil, "a paused drain that no controller has seen has made progress")
	r.mustUpdate(ann, "a", resume)
	first := at(0)
	is.True(t, r.get("a").Status.LastProgressTimestamp.Equal(&first), "last progress at %s, want the resume", r.get("a").Status.LastProgressTimestamp)
	stored := at(0)
	must.Get(r.updateStatus("a", func(nm *maintenance.NodeMaintenance) { nm.Status.LastProgressTimestamp = &stored }))(t)
	r.clock.SetTime(start.Add(10 * time.Minute))
	r.mustUpdate(ann, "a", pause)
	is.True(t, r.get("a").Status.LastProgressTimestamp.Equal(&stored), "a pause has changed the last progress")
	r.clock.SetTime(start.Add(20 * time.Minute))
	r.mustUpdate(ann, "a", resume)
	want := at(20 * time.Minute)
	is.True(t, r.get("a").Status.LastProgressTimestamp.Equal(&want), "last progress at %s, want the resume", r.get("a").Status.LastProgressTimestamp)
	// The clock of another replica may be slow.
	r.mustUpdate(ann, "a", pause)
	r.clock.SetTime(start)
	r.mustUpdate(ann, "a", resume)
	is.True(t, r.get("a").Status.LastProgressTimestamp.Equal(&want), "the last progress has moved back")
}
