// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

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
			shutdown := r.mustAnnounce("blue-1", "boot")
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
				"that do not belong to a shutdown": {
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
				if !slices.Equal(got, test.want) {
					t.Errorf("%s lists %q, want %q", name, got, test.want)
				}
			}
		})
	}
}

// mustAnnounce creates the maintenance of a shutdown and returns its name.
func (r *registry) mustAnnounce(node, boot string) string {
	r.t.Helper()
	return r.mustCreate(ann, newMaintenance(r.t, protocol.ShutdownName(node, boot), func(nm *v1alpha1.NodeMaintenance) {
		nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: boot}
		nm.Spec.NodeSelector = build.Named(node)
	})).Name
}

// countedReads counts the objects that are read from etcd.
type countedReads struct {
	value.Transformer
	count atomic.Int64
}

func (c *countedReads) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) (out []byte, stale bool, err error) {
	c.count.Add(1)
	return c.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// TestAListOfShutdownsReadsNoOtherNodes has shutdowns of many nodes. If all nodes of a cluster boot
// at the same time, the list of each agent must not read the maintenances of all nodes.
func TestAListOfShutdownsReadsNoOtherNodes(t *testing.T) {
	options := registrytest.RunEtcd(t).RESTOptions(maintenance.Resource("nodemaintenances"))
	reads := &countedReads{Transformer: identity.NewEncryptCheckTransformer()}
	options.StorageConfig.Transformer = reads
	r := newRegistryWith(t, options)
	const boot, nextBoot = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "6c84fb90-12c4-11e1-840d-7b25c5ee775a"
	const others = 50
	for n := range others {
		// These names begin as those of node b do, and come before them.
		r.mustAnnounce(fmt.Sprintf("b-0%02d", n), boot)
		r.mustAnnounce(fmt.Sprintf("c-%02d", n), boot)
	}
	list := func(selector string, modify ...func(*metainternalversion.ListOptions)) (names []string, version string) {
		t.Helper()
		request := &metainternalversion.ListOptions{Limit: 100, FieldSelector: fields.ParseSelectorOrDie(selector)}
		for _, m := range modify {
			m(request)
		}
		list := must.Get(r.storage.NodeMaintenance.List(r.ctx(ann, ""), request))(t).(*maintenance.NodeMaintenanceList)
		for _, nm := range list.Items {
			names = append(names, nm.Name)
		}
		is.True(t, list.Items != nil && list.ResourceVersion != "", "%s: a list without items or version: %+v", selector, list)
		is.Equal(t, list.Continue, "", selector, "continue")
		return names, list.ResourceVersion
	}
	first := r.mustAnnounce("b", boot)
	_, version := list("nodeOfShutdown=b")
	second := r.mustAnnounce("b", nextBoot)
	page := int64(protocol.MaxShutdowns + 1)
	for selector, test := range map[string]struct {
		want []string
		most int64
	}{
		"nodeOfShutdown=b":                     {[]string{first, second}, 2 * page},
		"nodeOfShutdown=b,spec.stage=Drain":    {nil, 2 * page},
		"nodeOfShutdown=b-007":                 {[]string{protocol.ShutdownName("b-007", boot)}, page},
		"nodeOfShutdown=c-07":                  {[]string{protocol.ShutdownName("c-07", boot)}, page},
		"nodeOfShutdown=c-49":                  {[]string{protocol.ShutdownName("c-49", boot)}, 1},
		"nodeOfShutdown=bb":                    {nil, page},
		"nodeOfShutdown=d":                     {nil, 0},
		"nodeOfShutdown=../b":                  {nil, 2*others + 2},
		"nodeOfShutdown=b,nodeOfShutdown=c-07": {nil, 2 * page},
	} {
		before := reads.count.Load()
		names, _ := list(selector)
		is.Slices(t, names, test.want, selector)
		if n := reads.count.Load() - before; n > test.most {
			t.Errorf("the list of %s has read %d maintenances, want at most %d", selector, n, test.most)
		}
	}
	names, _ := list("nodeOfShutdown=b", func(o *metainternalversion.ListOptions) { o.ResourceVersion = "0" })
	is.Slices(t, names, []string{first, second}, "any version")
	names, _ = list("nodeOfShutdown=b", func(o *metainternalversion.ListOptions) {
		o.ResourceVersion, o.ResourceVersionMatch = version, metav1.ResourceVersionMatchExact
	})
	is.Slices(t, names, []string{first}, "an earlier version")
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

// TestStatusOfFiveThousandNodesFits writes the largest status that the default plan can cause:
// every node has reached every wave, names are long, and messages have the maximum length.
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
			Type: v1alpha1.ConditionDrained, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonDrainInProgress, Message: strings.Repeat("m", 1024),
			LastTransitionTime: metav1.NewTime(start.Truncate(time.Second)),
		}}
	}))(t)
	if read := r.get("a"); !apiequality.Semantic.DeepEqual(read, written) || len(read.Status.NodeStatuses) != 5000 {
		t.Error("the read object differs from the written one")
	}
	size := len(etcd.StoredBytes(t.Context(), t, r.options, "a"))
	t.Logf("%d bytes", size)
	if limit := 3 << 19; size >= limit {
		t.Errorf("it takes %d bytes, etcd's limit for a request is %d", size, limit)
	}
	// Simulate the most frequent write, which increases the counter in every message.
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
	withStatus := func(stage maintenance.NodeMaintenanceStage, change func(*maintenance.NodeMaintenance)) *maintenance.NodeMaintenance {
		nm := newMaintenance(t, "a", atStage(stage), func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason, nm.Spec.RequestedBy = "kernel", &authenticationv1.UserInfo{Username: "ann"}
		})
		nm.Generation, nm.Status.ObservedGeneration = 2, 2
		nm.Finalizers = []string{completion}
		change(nm)
		return nm
	}
	began := &metav1.Time{Time: start}
	waves := []maintenance.NodeMaintenanceWave{{Entry: 0, PodsPeak: 3, PodsLeft: 0, StartTime: began, EndTime: began}, {Entry: 4, PodsPeak: 9, PodsLeft: 7, StartTime: began}}
	draining := withStatus(drain, func(nm *maintenance.NodeMaintenance) {
		nm.Status.Waves, nm.Status.Nodes, nm.Status.PodsGone = waves, 4, 5
		nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{
			nodeStatus(4, 2, 1, first), nodeStatus(0, 0, 0, first, web), nodeStatus(0, 1, 0, first), nodeStatus(0, 0, 0),
		}
	})
	for name, test := range map[string]struct {
		nm   *maintenance.NodeMaintenance
		want []any
	}{
		"a maintenance that no controller has observed": {
			nm:   newMaintenance(t, "a", func(nm *v1alpha1.NodeMaintenance) { nm.Generation = 1 }),
			want: []any{"a", "Idle", "Idle (not observed)", int64(0), "-", "-", int64(0), "<unknown>", "-", "-", "-", "-"},
		},
		"a maintenance in stage Cordon shows the pods that are left": {
			nm: withStatus(cordon, func(nm *maintenance.NodeMaintenance) {
				nm.Status.Nodes, nm.Status.NodeStatuses = 1, []maintenance.NodeMaintenanceNodeStatus{nodeStatus(9, 0, 0)}
				nm.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Cordoned"}}
			}),
			want: []any{"a", "Cordoned", "Cordon", int64(1), "-", "0/9", int64(0), "<unknown>", "-", "-", "kernel", "ann"},
		},
		"a maintenance in stage Drain: a node without a target is not drained": {
			nm:   draining,
			want: []any{"a", "Draining", "Drain", int64(4), "1/4", "5/12", int64(1), "<unknown>", "5", "-", "kernel", "ann"},
		},
		"a maintenance whose selector matches no node": {
			nm: withStatus(drain, func(nm *maintenance.NodeMaintenance) {
				nm.Status.Conditions = []metav1.Condition{{Type: "Drained", Status: metav1.ConditionFalse, Reason: "NoNodesSelected"}}
			}),
			want: []any{"a", "NoNodes", "Drain", int64(0), "0/0", "0/0", int64(0), "<unknown>", "-", "-", "kernel", "ann"},
		},
		"texts of users have no escape sequence and one line": {
			nm: withStatus(cordon, func(nm *maintenance.NodeMaintenance) {
				nm.Spec.Reason, nm.Spec.RequestedBy = "kernel\x1b[2J\nupdate", &authenticationv1.UserInfo{Username: "ann\x1b[2J" + strings.Repeat("a", 200)}
			}),
			want: []any{"a", "NoNodes", "Cordon", int64(0), "-", "0/0", int64(0), "<unknown>", "-", "-", "kernel[2J update", "ann[2J" + strings.Repeat("a", 122)},
		},
		"a complete maintenance keeps its totals": {
			nm: withStatus(complete, func(nm *maintenance.NodeMaintenance) {
				nm.Finalizers = nil
				nm.Status.Waves, nm.Status.Nodes, nm.Status.PodsGone = waves, 4, 5
			}),
			want: []any{"a", "Complete", "Complete", int64(4), "-", "5/12", int64(0), "<unknown>", "-", "-", "kernel", "ann"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := must.Get(newTable(observedAt(start)).ConvertToTable(t.Context(), test.nm, nil))(t)
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
		table := must.Get(newTable(observedAt(start)).ConvertToTable(t.Context(), list, &metav1.TableOptions{NoHeaders: true}))(t)
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
			"NAME", "STATUS", "STAGE", "NODES", "DRAINED", "PODS", "BLOCKED", "AGE",
		}; !slices.Equal(narrow, want) {
			t.Errorf("columns are %q, want %q", narrow, want)
		}
		if want := []string{"WAVE", "TASK", "REASON", "REQUESTED-BY"}; !slices.Equal(wide, want) {
			t.Errorf("wide columns are %q, want %q", wide, want)
		}
	})
	t.Run("another kind is an error", func(t *testing.T) {
		if _, err := newTable(observedAt(start)).ConvertToTable(t.Context(), &maintenance.Evacuation{}, nil); err == nil {
			t.Error("there was none")
		}
	})
}
