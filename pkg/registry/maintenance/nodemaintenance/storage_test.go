// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestSelectors(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for mode, options := range map[string]func() *registry{
		"from etcd": func() *registry { return newRegistry(t, etcd) },
		"from watch cache": func() *registry {
			return newRegistryWith(t, etcd.CachedRESTOptions(maintenance.Resource("nodemaintenances")))
		},
	} {
		t.Run(mode, func(t *testing.T) {
			r := options()
			r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
			r.mustCreate(ann, newMaintenance(t, "b", func(nm *v1alpha1.NodeMaintenance) {
				nm.Labels = map[string]string{"team": "blue"}
			}))
			r.mustCreate(ann, newMaintenance(t, "c", atStage(drain),
				func(nm *v1alpha1.NodeMaintenance) { nm.Labels = map[string]string{"team": "blue"} }))
			r.mustCreate(ann, newMaintenance(t, protocol.ShutdownName("blue-1", "boot"), func(nm *v1alpha1.NodeMaintenance) {
				nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: "boot"}
				nm.Spec.NodeSelector = build.Named("blue-1")
			}))
			shutdown := protocol.ShutdownName("blue-1", "boot")
			for name, test := range map[string]struct {
				fields fields.Selector
				labels labels.Selector
				want   []string
			}{
				"by stage": {
					fields: fields.OneTermEqualSelector(maintenance.FieldStage, "Drain"), want: []string{"a", "c"},
				},
				"by another stage": {
					fields: fields.OneTermNotEqualSelector(maintenance.FieldStage, "Drain"), want: []string{"b", shutdown},
				},
				"by the node of a shutdown": {
					fields: fields.OneTermEqualSelector(maintenance.FieldNodeOfShutdown, "blue-1"), want: []string{shutdown},
				},
				"by a node without a shutdown": {fields: fields.OneTermEqualSelector(maintenance.FieldNodeOfShutdown, "blue-2")},
				"that are of no shutdown": {
					fields: fields.OneTermEqualSelector(maintenance.FieldNodeOfShutdown, ""), want: []string{"a", "b", "c"},
				},
				"by name": {fields: fields.OneTermEqualSelector(maintenance.FieldName, "c"), want: []string{"c"}},
				"by label and stage": {
					fields: fields.OneTermEqualSelector(maintenance.FieldStage, "Drain"),
					labels: labels.SelectorFromSet(labels.Set{"team": "blue"}), want: []string{"c"},
				},
			} {
				list, err := r.storage.NodeMaintenance.List(r.ctx(ann, ""),
					&metainternalversion.ListOptions{FieldSelector: test.fields, LabelSelector: test.labels})
				must.True(t, err == nil, "%s: %v", name, err)
				var got []string
				for _, nm := range list.(*maintenance.NodeMaintenanceList).Items {
					got = append(got, nm.Name)
				}
				is.True(t, slices.Equal(got, test.want), "%s lists %q, want %q", name, got, test.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	storage := newRegistry(t, registrytest.RunEtcd(t)).storage
	if got := storage.NodeMaintenance.ShortNames(); !slices.Equal(got, []string{"nm"}) {
		t.Errorf("short names are %q", got)
	}
	if got := storage.NodeMaintenance.GetSingularName(); got != "nodemaintenance" {
		t.Errorf("singular name is %q", got)
	}
	is.True(t, !storage.NodeMaintenance.NamespaceScoped(), "it is namespaced")
	if _, ok := any(storage.NodeMaintenance).(rest.CategoriesProvider); ok {
		t.Error("it has categories, but is no workload of a user: kubectl get all must not show it")
	}
}

// TestStatusOfFiveThousandNodesFits writes the worst that the default plan gives: every wave open
// on every node, long names, full messages.
func TestStatusOfFiveThousandNodesFits(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd)
	r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
	nodes := make([]maintenance.NodeMaintenanceNodeStatus, 5000)
	for i := range nodes {
		nodes[i] = maintenance.NodeMaintenanceNodeStatus{
			NodeRef: maintenance.NodeReference{
				Name: fmt.Sprintf("ip-10-%03d-%03d-100.eu-central-1.compute.internal", i/250, i%250),
				UID:  types.UID(fmt.Sprintf("f5823a89-e03f-4752-b013-%012d", i)),
			},
			DrainTargets: []maintenance.DrainPlanEntry{
				{PodType: maintenance.PodTypeDefault, PodPriority: v1alpha1.MaxPodPriority},
				{PodType: maintenance.PodTypeDaemonSet, PodPriority: v1alpha1.MaxPodPriority},
				{PodType: maintenance.PodTypeStatic, PodPriority: v1alpha1.MaxPodPriority},
			},
			DrainMessage:          strings.Repeat("m", 128),
			PodsPendingEvacuation: 250, PodsEvacuating: 250, PodsBlocked: 250, PodsKept: 250, PodsPeak: 250,
		}
	}
	written := must.Get(r.updateStatus("a", func(nm *maintenance.NodeMaintenance) {
		nm.Status.NodeStatuses = nodes
		nm.Status.Conditions = []metav1.Condition{{
			Type: maintenance.ConditionDrained, Status: metav1.ConditionFalse,
			Reason: maintenance.ReasonDrainInProgress, Message: strings.Repeat("m", 1024),
			LastTransitionTime: metav1.NewTime(start.Truncate(time.Second)),
		}}
	}))(t)
	if read := r.get("a"); !apiequality.Semantic.DeepEqual(read, written) || len(read.Status.NodeStatuses) != 5000 {
		t.Error("what was read differs from what was written")
	}
	size := len(etcd.StoredBytes(t.Context(), t, r.options, "a"))
	t.Logf("%d bytes", size)
	if limit := 3 << 19; size >= limit {
		t.Errorf("it takes %d bytes, etcd's limit for a request is %d", size, limit)
	}
	// Raising every message's counter is the write that comes most often.
	if _, err := r.updateStatus("a", func(nm *maintenance.NodeMaintenance) {
		nm.Status.NodeStatuses[4999].PodsEvacuating = 1
	}); err != nil {
		t.Error(err)
	}
}

func TestTable(t *testing.T) {
	nodeStatus := func(
		pending, evacuating, blocked int32, targets ...maintenance.DrainPlanEntry,
	) maintenance.NodeMaintenanceNodeStatus {
		return maintenance.NodeMaintenanceNodeStatus{
			DrainTargets: targets, PodsPendingEvacuation: pending, PodsEvacuating: evacuating, PodsBlocked: blocked,
		}
	}
	first := maintenance.DrainPlanEntry{PodType: maintenance.PodTypeDefault, PodPriority: 1000}
	web := maintenance.DrainPlanEntry{
		PodType: maintenance.PodTypeDaemonSet, PodPriority: 10,
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}
	for name, test := range map[string]struct {
		nm   *maintenance.NodeMaintenance
		want []any
	}{
		"one that has just been made": {
			nm:   newMaintenance(t, "a"),
			want: []any{"a", "Idle", int64(0), "-", int64(0), int64(0), int64(0), "<unknown>", "-", "-", "pool=blue"},
		},
		"one that drains: a node without target is not drained": {
			nm: func() *maintenance.NodeMaintenance {
				nm := newMaintenance(t, "a", atStage(drain),
					func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Reason = "kernel" })
				nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{
					nodeStatus(4, 2, 1, first), nodeStatus(0, 0, 0, first, web), nodeStatus(0, 1, 0, first),
					nodeStatus(0, 0, 0),
				}
				return nm
			}(),
			want: []any{
				"a", "Drain", int64(4), "1/4", int64(4), int64(3), int64(1), "<unknown>", "kernel",
				"DaemonSet<=10 app=web", "pool=blue",
			},
		},
		"every operator of a selector": {
			nm: newMaintenance(t, "a", func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "a", Operator: "In", Values: []string{"x", "y"}},
						{Key: "b", Operator: "NotIn", Values: []string{"x", "y"}},
						{Key: "c", Operator: "NotIn", Values: []string{"x"}}, {Key: "d", Operator: "Exists"},
						{Key: "e", Operator: "DoesNotExist"},
						{Key: "f", Operator: "Gt", Values: []string{"1"}},
						{Key: "g", Operator: "Lt", Values: []string{"2"}},
					}},
					{
						MatchFields: []corev1.NodeSelectorRequirement{
							{Key: "metadata.name", Operator: "In", Values: []string{"n"}},
						},
					},
				}}
			}),
			want: []any{"a", "Idle", int64(0), "-", int64(0), int64(0), int64(0), "<unknown>", "-", "-",
				"a in (x,y),b notin (x,y),c!=x,d,!e,f>1,g<2 || metadata.name=n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := must.Get(tableConvertor{observedAt(start)}.ConvertToTable(t.Context(), test.nm, nil))(t)
			if len(table.Rows) != 1 || !slices.Equal(table.Rows[0].Cells, test.want) {
				t.Errorf("cells are %v, want %v", table.Rows, test.want)
			}
			if len(table.ColumnDefinitions) != len(test.want) {
				t.Errorf("%d columns for %d cells", len(table.ColumnDefinitions), len(test.want))
			}
		})
	}
	t.Run("a list without headers", func(t *testing.T) {
		list := &maintenance.NodeMaintenanceList{
			ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"},
			Items:    []maintenance.NodeMaintenance{*newMaintenance(t, "a"), *newMaintenance(t, "b")},
		}
		table := must.Get(tableConvertor{observedAt(start)}.ConvertToTable(t.Context(), list, &metav1.TableOptions{NoHeaders: true}))(t)
		if len(table.Rows) != 2 || table.ColumnDefinitions != nil || table.ResourceVersion != "7" ||
			table.Continue != "more" {
			t.Errorf("table is %v", table)
		}
	})
	t.Run("the columns of api.md", func(t *testing.T) {
		var narrow, wide []string
		for _, c := range columns {
			if c.Priority == 0 {
				narrow = append(narrow, strings.ToUpper(c.Name))
			} else {
				wide = append(wide, strings.ToUpper(c.Name))
			}
		}
		if want := []string{
			"NAME", "STAGE", "NODES", "DRAINED", "PENDING", "EVACUATING", "BLOCKED", "AGE",
		}; !slices.Equal(narrow, want) {
			t.Errorf("columns are %q, want %q", narrow, want)
		}
		if want := []string{"REASON", "TARGET", "SELECTOR"}; !slices.Equal(wide, want) {
			t.Errorf("wide columns are %q, want %q", wide, want)
		}
	})
	t.Run("another kind is an error", func(t *testing.T) {
		if _, err := (tableConvertor{observedAt(start)}).ConvertToTable(t.Context(), &maintenance.Evacuation{}, nil); err == nil {
			t.Error("there was none")
		}
	})
}

func TestDeleteIdleIsGoneImmediately(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, options := range map[string]*metav1.DeleteOptions{
		"without options":                {},
		"with a grace period":            {GracePeriodSeconds: ptr.To[int64](30)},
		"in the background":              {PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)},
		"with a grace period of nothing": {GracePeriodSeconds: ptr.To[int64](0)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a"))
			must.Do(t, r.delete(bob, "a", options))
			if left := r.get("a"); left != nil {
				t.Errorf("it is still there: %v", left)
			}
		})
	}
	t.Run("with preconditions", func(t *testing.T) {
		r := newRegistry(t, etcd)
		nm := r.mustCreate(ann, newMaintenance(t, "a"))
		err := r.delete(bob, "a", &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))},
		})
		is.True(t, apierrors.IsConflict(err), "another UID gives %v, want a conflict", err)
		err = r.delete(bob, "a", &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &nm.UID, ResourceVersion: &nm.ResourceVersion},
		})
		if err != nil || r.get("a") != nil {
			t.Errorf("its own UID and version give %v and leave %v", err, r.get("a"))
		}
	})
	t.Run("a dry run leaves it as it is", func(t *testing.T) {
		r := newRegistry(t, etcd)
		nm := r.mustCreate(ann, newMaintenance(t, "a"))
		must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		if left := r.get("a"); !apiequality.Semantic.DeepEqual(left, nm) {
			t.Errorf("changed from %v to %v", nm, left)
		}
	})
	t.Run("it waits for the finalizers of others and stays Idle", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a"))
		must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{
			PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		}))
		left := r.get("a")
		if left == nil || left.DeletionTimestamp == nil || left.Spec.Stage != idle {
			t.Fatalf("left is %v, want an Idle object that is being deleted", left)
		}
		wantFinalizers(t, left, metav1.FinalizerDeleteDependents)
		r.mustUpdate(bob, "a", setFinalizers())
		if left := r.get("a"); left != nil {
			t.Errorf("it is still there: %v", left)
		}
	})
}

func TestDeleteMovesToCompleteInTheSameWrite(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	cascade := func(p metav1.DeletionPropagation) metav1.DeleteOptions {
		return metav1.DeleteOptions{PropagationPolicy: &p}
	}
	drained := []maintenance.NodeMaintenanceStage{cordon, drain, complete}
	for name, test := range map[string]struct {
		stage   maintenance.NodeMaintenanceStage
		options metav1.DeleteOptions
		// by is bob unless it is set, and so is wantBy.
		by         *user.DefaultInfo
		wantStages []maintenance.NodeMaintenanceStage
		// finalizers are there beside that of the completion.
		finalizers []string
		wantBy     string
	}{
		"from Cordon": {stage: cordon, wantStages: []maintenance.NodeMaintenanceStage{cordon, complete}},
		"from Drain":  {stage: drain, wantStages: drained},
		"from Drain with a grace period": {
			stage: drain, options: metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)}, wantStages: drained,
		},
		"from Drain in the foreground": {
			stage: drain, options: cascade(metav1.DeletePropagationForeground),
			wantStages: drained,
			finalizers: []string{metav1.FinalizerDeleteDependents},
		},
		"from Drain with orphans": {
			stage: drain, options: cascade(metav1.DeletePropagationOrphan),
			wantStages: drained,
			finalizers: []string{metav1.FinalizerOrphanDependents},
		},
		"from Drain by the server": {stage: drain, by: self, wantStages: drained, wantBy: "ann"},
		"from Complete, where nothing is new": {
			stage: complete, wantStages: []maintenance.NodeMaintenanceStage{complete}, wantBy: "ann",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			created := r.mustCreate(ann, newMaintenance(t, "a", atStage(test.stage)))
			watch := must.Get(r.storage.NodeMaintenance.Watch(r.ctx(ann, ""),
				&metainternalversion.ListOptions{ResourceVersion: created.ResourceVersion}))(t)
			defer watch.Stop()
			r.clock.SetTime(start.Add(time.Hour))
			must.Do(t, r.delete(cmp.Or(test.by, bob), "a", &test.options))
			// The first thing a watch shows after the creation has it all.
			event := <-watch.ResultChan()
			nm, ok := event.Object.(*maintenance.NodeMaintenance)
			if !ok || nm.DeletionTimestamp == nil || nm.Spec.Stage != complete {
				t.Fatalf("the first event is %v, want one of an object that is Complete and being deleted", event)
			}
			is.Equal(t, nm.Generation, created.Generation+1, "generation")
			wantStages(t, nm, test.wantStages...)
			wantFinalizers(t, nm, append([]string{completion}, test.finalizers...)...)
			is.Equal(t, nm.Spec.RequestedBy.Username, cmp.Or(test.wantBy, "bob"), "requestedBy")
			if stored := r.get("a"); !apiequality.Semantic.DeepEqual(stored, nm) {
				t.Errorf("there was another write: %v", stored)
			}
		})
	}
}

func TestDeletionEndsWhenTheServerTakesItsFinalizerOff(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
	must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{}))
	deleting := r.get("a")
	if err := r.delete(bob, "a", &metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete again: %v", err)
	}
	if again := r.get("a"); !apiequality.Semantic.DeepEqual(again.Spec, deleting.Spec) ||
		again.Generation != deleting.Generation {
		t.Errorf("the second deletion changed %v to %v", deleting, again)
	}
	wantFinalizers(t, r.mustUpdate(bob, "a", setFinalizers()), completion)
	for name, change := range map[string]func(*maintenance.NodeMaintenance){
		"stage":    setStage(drain),
		"selector": func(nm *maintenance.NodeMaintenance) { nm.Spec.NodeSelector = poolSelector("red") },
	} {
		if _, err := r.update(bob, "a", change); !apierrors.IsInvalid(err) {
			t.Errorf("changing the %s while deleting gives %v, want invalid", name, err)
		}
	}
	r.mustUpdate(self, "a", setFinalizers())
	if left := r.get("a"); left != nil {
		t.Errorf("it is still there: %v", left)
	}
}

// TestDeletionThatWasInterruptedIsFinishedByTheNext has the server die between the two writes of
// the deletion of an Idle maintenance.
func TestDeletionThatWasInterruptedIsFinishedByTheNext(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	created := r.mustCreate(ann, newMaintenance(t, "a"))
	store := r.storage.NodeMaintenance.Store
	inner := store.Storage.Storage
	store.Storage.Storage = undeletable{inner}
	if err := r.delete(bob, "a", &metav1.DeleteOptions{}); !errors.Is(err, errInterrupted) {
		t.Fatalf("error %v, want the interruption", err)
	}
	store.Storage.Storage = inner
	if left := r.get("a"); left == nil || left.DeletionTimestamp == nil || len(left.Finalizers) > 0 {
		t.Fatalf("left is %v, want an object that is being deleted and held by nothing", left)
	}
	must.Do(t, r.delete(self, "a", &metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(created.UID)),
	}))
	if left := r.get("a"); left != nil {
		t.Errorf("it is still there: %v", left)
	}
}

var errInterrupted = errors.New("interrupted")

// undeletable is a storage in which nothing can be deleted.
type undeletable struct {
	storage.Interface
}

func (undeletable) Delete(
	context.Context, string, runtime.Object, *storage.Preconditions, storage.ValidateObjectFunc, runtime.Object,
	storage.DeleteOptions,
) error {
	return errInterrupted
}

func TestDeleteCollection(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	for name, stage := range map[string]maintenance.NodeMaintenanceStage{
		"idle": idle, "drain": drain, "complete": complete,
	} {
		r.mustCreate(ann, newMaintenance(t, name, atStage(stage)))
	}
	must.Get(r.storage.NodeMaintenance.DeleteCollection(r.ctx(bob, ""), rest.ValidateAllObjectFunc,
		&metav1.DeleteOptions{}, nil))(t)
	if left := r.get("idle"); left != nil {
		t.Errorf("the Idle one is still there: %v", left)
	}
	for _, name := range []string{"drain", "complete"} {
		left := r.get(name)
		if left == nil || left.DeletionTimestamp == nil || left.Spec.Stage != complete {
			t.Errorf("%s is %v, want it Complete and being deleted", name, left)
		}
	}
}

func TestDeleteOfAnIdleOneThatMovesToDrainMeanwhile(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a"))
	store := r.storage.NodeMaintenance.Store
	inner := store.Storage.Storage
	store.Storage.Storage = &interceptedStorage{Interface: inner, after: func() {
		store.Storage.Storage = inner
		r.mustUpdate(ann, "a", setStage(drain))
	}}
	must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{}))
	left := r.get("a")
	must.True(t, left != nil, "it is gone, and with it the memory of the nodes it has claimed")
	if left.DeletionTimestamp == nil || left.Spec.Stage != complete {
		t.Errorf("left is %v, want it Complete and being deleted", left)
	}
	wantStages(t, left, idle, cordon, drain, complete)
	wantFinalizers(t, left, completion)
	is.True(t, reflect.DeepEqual(left.Spec.RequestedBy, bobInfo()), "requestedBy is %v, want bob", left.Spec.RequestedBy)
}
