// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

func TestStatusIsNotCreatedByUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	_, _, err := r.Status.Update(request(t, server, "update", "status", name), name,
		rest.DefaultUpdatedObjectInfo(newEvacuation()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc,
		true, &metav1.UpdateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want that it is not found", err)
	}
}

func TestStatusWritesKeepMetadataAndSpec(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	got := r.mustUpdateStatus(server, active("first.example.com"), finalizers(), func(e *maintenance.Evacuation) {
		e.Labels = map[string]string{"app": "other"}
		e.Spec.NodeName = "node-8"
	})
	if !equality.Semantic.DeepEqual(got.Spec, created.Spec) {
		t.Errorf("the spec became %+v", got.Spec)
	}
	if !slices.Equal(got.Finalizers, created.Finalizers) || got.Labels["app"] != "web" {
		t.Errorf("the metadata became %+v", got.ObjectMeta)
	}
	if got.Status.ActiveEvacuatorClass != "first.example.com" {
		t.Errorf("the status was not written: %+v", got.Status)
	}
}

func TestStatusTransitions(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	first, last := active("first.example.com"), active("last.example.com")
	mods := func(m ...mod) []mod { return m }
	// inTurn gives the turn to each, as the one before has completed.
	inTurn := func(classes ...string) []mod {
		var steps []mod
		for i, class := range classes {
			if i > 0 {
				steps = append(steps, completed)
			}
			steps = append(steps, active(class))
		}
		return steps
	}
	third := inTurn("first.example.com", "deployment.apps.k8s.io", "last.example.com")
	evicted := inTurn("first.example.com", "deployment.apps.k8s.io", "last.example.com", eviction)
	tests := map[string]struct {
		// before are writes of the server, one after the other.
		before []mod
		user   user.Info
		mods   []mod
		want   []string
	}{
		"the first evacuator reports immediately": {user: ann, mods: mods(message("x"), forbid)},
		"the server moves down": {
			before: mods(first, completed), user: server, mods: mods(active("deployment.apps.k8s.io")),
		},
		"the server moves to eviction": {
			before: append(slices.Clone(third), completed), user: server, mods: mods(active(eviction)),
		},
		"the server leaves one out": {
			before: mods(first, completed), user: server, mods: mods(last),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the server goes straight to eviction": {
			before: mods(first, completed), user: server, mods: mods(active(eviction)),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the server moves up": {
			before: third, user: server, mods: mods(first),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the server moves up from eviction": {
			before: evicted, user: server, mods: mods(first),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the server names an unknown class": {
			before: mods(first), user: server, mods: mods(active("x.example.com")),
			want: []string{"FieldValueNotSupported status.activeEvacuatorClass"},
		},
		"the server takes the turn back": {
			before: mods(first), user: server, mods: mods(active("")),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the counter rises": {before: mods(first, counter(2)), user: server, mods: mods(counter(3))},
		"the counter falls": {
			before: mods(first, counter(2)), user: server, mods: mods(counter(1)),
			want: []string{"FieldValueInvalid status.failedEvictionCounter"},
		},
		"the counter is negative": {
			before: mods(first), user: server, mods: mods(counter(-1)),
			want: []string{"FieldValueInvalid status.failedEvictionCounter"},
		},
		"a policy that is none": {
			before: mods(first), user: server,
			mods: mods(func(e *maintenance.Evacuation) { e.Status.EvacuationCancellationPolicy = "Perhaps" }),
			want: []string{"FieldValueNotSupported status.evacuationCancellationPolicy"},
		},
		"a message of 1025 bytes": {
			before: mods(first), user: ann, mods: mods(message(strings.Repeat("x", 1025))),
			want: []string{"FieldValueTooLong status.message"},
		},
		"a condition twice": {
			before: mods(first), user: server, mods: mods(condition("Blocked", "A"), condition("Blocked", "A")),
			want: []string{"FieldValueDuplicate status.conditions[1]"},
		},
		"a condition without reason": {
			before: mods(first), user: server, mods: mods(condition("Blocked", "")),
			want: []string{"FieldValueRequired status.conditions[0].reason"},
		},
		"the server completes it": {before: mods(first), user: server, mods: mods(condition("Complete", "PodDeleted"))},
		"the server changes a complete one": {
			before: mods(first, condition("Complete", "PodDeleted")), user: server, mods: mods(message("x")),
			want: []string{"FieldValueForbidden status"},
		},
		"the server moves a complete one on": {
			before: mods(first, condition("Complete", "PodDeleted")), user: server, mods: mods(last),
			want: []string{"FieldValueForbidden status"},
		},
		"an evacuator reports on a complete one": {
			before: mods(first, condition("Complete", "PodDeleted")), user: ann, mods: mods(message("x")),
			want: []string{"FieldValueForbidden status"},
		},
		"an evacuator beats on a complete one": {before: mods(first, condition("Complete", "PodDeleted")), user: ann},
		"the active evacuator reports":         {before: mods(first), user: ann, mods: mods(message("x"), forbid)},
		"an evacuator passes the turn on": {
			before: mods(first), user: ann, mods: mods(last),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"an evacuator that lost its turn writes": {
			before: third, user: ann, mods: mods(first, message("x")),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"a user reports for eviction": {
			before: evicted, user: ann, mods: mods(message("x")), want: []string{"FieldValueForbidden status"},
		},
		"an evacuator counts evictions": {
			before: mods(first), user: ann, mods: mods(counter(1)),
			want: []string{"FieldValueForbidden status.failedEvictionCounter"},
		},
		"an evacuator completes the evacuation": {
			before: mods(first), user: ann, mods: mods(condition("Complete", "PodDeleted")),
			want: []string{"FieldValueForbidden status.conditions"},
		},
		"the server completes and hands over in one write": {
			before: mods(first), user: server, mods: mods(completed, active("deployment.apps.k8s.io")),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the server forbids for the eviction": {
			before: evicted, user: server, mods: mods(forbid),
			want: []string{"FieldValueInvalid status.evacuationCancellationPolicy"},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			for _, m := range tt.before {
				r.mustUpdateStatus(server, m)
			}
			_, err := r.updateStatus(tt.user, tt.mods...)
			expectCauses(t, err, tt.want...)
		})
	}
}

func counter(n int32) mod {
	return func(e *maintenance.Evacuation) { e.Status.FailedEvictionCounter = n }
}

func TestWithoutEvacuatorsEvictionStarts(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate(withEvacuators())
	if got := r.mustUpdateStatus(server, active(eviction)); got.Status.ActiveEvacuatorClass != eviction {
		t.Errorf("the turn is with %q", got.Status.ActiveEvacuatorClass)
	}
}

func TestProgressTimestamp(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(start.Truncate(time.Second).Add(d))) }
	expect := func(what string, got *maintenance.Evacuation, want *metav1.Time) {
		t.Helper()
		if !got.Status.EvacuationProgressTimestamp.Equal(want) {
			t.Errorf("%s: the progress timestamp is %v, want %v", what, got.Status.EvacuationProgressTimestamp, want)
		}
	}
	theirs := func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start.Add(240 * time.Hour)))
	}
	expect("the first evacuator has not reported yet", r.mustUpdateStatus(server, active("first.example.com")), nil)

	r.clock.SetTime(start.Add(time.Minute))
	expect("it writes without a change", r.mustUpdateStatus(ann), at(time.Minute))
	before := r.mustUpdateStatus(ann)
	if again := r.mustUpdateStatus(ann); again.ResourceVersion != before.ResourceVersion {
		t.Errorf("two reports in a second are two writes")
	}

	r.clock.SetTime(start.Add(2 * time.Minute))
	expect("it sends a time of its own", r.mustUpdateStatus(ann, theirs), at(2*time.Minute))
	expect("it removes the time",
		r.mustUpdateStatus(ann, func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }),
		at(2*time.Minute))

	r.clock.SetTime(start.Add(3 * time.Minute))
	expect("the server writes the message", r.mustUpdateStatus(server, message("x")), at(2*time.Minute))
	expect("the server's own evacuator reports", r.mustUpdateStatus(server, func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = at(3 * time.Minute)
	}), at(3*time.Minute))

	r.clock.SetTime(start.Add(4 * time.Minute))
	expect("the server's own evacuator makes up a time", r.mustUpdateStatus(server, theirs), at(4*time.Minute))
	r.clock.SetTime(start.Add(5 * time.Minute))
	expect(
		"the server removes the time",
		r.mustUpdateStatus(server, message("y"),
			func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }),
		at(4*time.Minute),
	)

	r.mustUpdateStatus(ann, completed)
	r.clock.SetTime(start.Add(6 * time.Minute))
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), theirs)
	expect("the next one becomes active", got, nil)
	if !got.Status.ActiveEvacuatorSince.Equal(at(6 * time.Minute)) {
		t.Errorf("the next one is active since %v, want %v", got.Status.ActiveEvacuatorSince, at(6*time.Minute))
	}

	r.mustUpdateStatus(server, condition("Complete", "PodDeleted"))
	r.clock.SetTime(start.Add(7 * time.Minute))
	expect("it reports on a complete one", r.mustUpdateStatus(ann), nil)
}

func TestHandOverClearsWhatTheLastOneReported(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	r.mustUpdateStatus(server, active("first.example.com"))
	r.mustUpdateStatus(ann, forbid, func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorCompleted = true
		e.Status.ExpectedEvacuationFinishTime = ptr.To(metav1.NewTime(start))
	})
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), message("first.example.com said it completed"))
	want := maintenance.EvacuationStatus{
		ActiveEvacuatorClass:         "deployment.apps.k8s.io",
		ActiveEvacuatorSince:         ptr.To(metav1.NewTime(start).Rfc3339Copy()),
		EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		Message:                      "first.example.com said it completed",
	}
	if !equality.Semantic.DeepEqual(got.Status, want) {
		t.Errorf("the status is %+v, want %+v", got.Status, want)
	}
}

func TestForbidAndTheInstigators(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		prepare func(*registry)
		want    []string
	}{
		"in time": {prepare: func(*registry) {}},
		"after the last instigator is gone": {
			prepare: func(r *registry) { _, _ = r.update(ann, finalizers()) },
			want:    []string{"FieldValueInvalid status.evacuationCancellationPolicy"},
		},
		"after the deletion": {
			prepare: func(r *registry) { r.delete() },
			want:    []string{"FieldValueInvalid status.evacuationCancellationPolicy"},
		},
		"before both": {
			prepare: func(r *registry) {
				r.mustUpdateStatus(ann, forbid)
				r.delete()
				_, _ = r.update(ann, finalizers(metav1.FinalizerOrphanDependents))
			},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			r.mustUpdateStatus(server, active("first.example.com"))
			tt.prepare(r)
			_, err := r.updateStatus(ann, forbid)
			expectCauses(t, err, tt.want...)
		})
	}
}
