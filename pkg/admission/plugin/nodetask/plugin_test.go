// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	class   = "reboot.example.com"
	onAll   = "progress maintenance.haulout.dev/workers " + class
	onOwn   = "progress maintenance.haulout.dev/workers/node " + class
	onOther = "progress maintenance.haulout.dev/workers job.example.com"
	asHand  = "progress maintenance.haulout.dev/workers " + v1alpha1.WorkerClassPerson
	asOwn   = "progress maintenance.haulout.dev/workers/node " + v1alpha1.WorkerClassPerson

	startOver = "delete maintenance.haulout.dev/nodetasks a"
)

var self = &user.DefaultInfo{Name: "system:apiserver", UID: "random"}

// grants is an authorizer that allows what is in it: "verb group/resource name".
type grants []string

func (g grants) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	about := fmt.Sprintf("%s %s/%s %s", a.GetVerb(), a.GetAPIGroup(), resource, a.GetName())
	switch {
	case slices.Contains(g, "error"):
		return authorizer.DecisionNoOpinion, "", errors.New("the webhook is down")
	case slices.Contains(g, about) && a.IsResourceRequest():
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// newPlugin returns a plugin, and the stores of its caches. The cluster has the node a.
func newPlugin(t *testing.T, g grants) (plugin *Plugin, nodes, maintenances cache.Store) {
	t.Helper()
	host := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	own := informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0)
	plugin = New(rights.Rules{PoolLabel: "pool"})
	server := &identity.Server{}
	server.Set(self)
	initializer.Dependencies{Informers: own, Identity: server}.Initialize(plugin)
	plugin.SetExternalKubeInformerFactory(host)
	plugin.SetUnconditionalAuthorizer(g)
	must.Do(t, plugin.ValidateInitialization())
	plugin.SetReadyFunc(func() bool { return true })
	nodes = host.Core().V1().Nodes().Informer().GetStore()
	must.Do(t, nodes.Add(nodeA))
	return plugin, nodes, own.Maintenance().V1alpha1().NodeMaintenances().Informer().GetStore()
}

var nodeA = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}

// request is a request about the task of node a.
type request struct {
	operation   admission.Operation
	subresource string
	// state is the stored state of the work, and result the result that is written.
	state  maintenance.NodeTaskState
	result maintenance.NodeTaskResult
	// class is the class of the task, reboot.example.com if it is empty.
	class string
	// claimedBy is the name of the user who has claimed the node.
	claimedBy string
}

var (
	create   = request{operation: admission.Create}
	same     = request{operation: admission.Update}
	update   = request{operation: admission.Update, class: "job.example.com"}
	report   = request{operation: admission.Update, subresource: "status", result: maintenance.NodeTaskResultDone}
	late     = request{admission.Update, "status", maintenance.NodeTaskFailed, maintenance.NodeTaskResultDone, "", ""}
	failed   = request{admission.Update, "status", maintenance.NodeTaskFailed, "Failed", "", ""}
	byHand   = request{operation: admission.Update, subresource: "status", class: v1alpha1.WorkerClassPerson}
	handDone = request{admission.Update, "status", "", maintenance.NodeTaskResultDone, v1alpha1.WorkerClassPerson, "bob"}
	ownDone  = request{admission.Update, "status", "", maintenance.NodeTaskResultDone, v1alpha1.WorkerClassPerson, "ann"}
	removal  = request{operation: admission.Delete}
)

func (r request) validate(t *testing.T, u user.Info, g grants) error {
	t.Helper()
	plugin, _, _ := newPlugin(t, g)
	return r.validateBy(t, plugin, u)
}

func (r request) validateBy(t *testing.T, plugin *Plugin, u user.Info) error {
	t.Helper()
	task := &maintenance.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: maintenance.NodeTaskSpec{
		Maintenance: maintenance.NodeTaskMaintenance{Name: "m", UID: "uid-m"}, Worker: cmp.Or(r.class, class),
	}}
	task.Status.State, task.Status.ClaimedBy = r.state, r.claimedBy
	written := task.DeepCopy()
	written.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "test"}}
	written.Status.Result = r.result
	if r.subresource == "" {
		written.Spec.Worker = class
	}
	var now, old, options runtime.Object = written, task, &metav1.UpdateOptions{}
	switch r.operation {
	case admission.Create:
		old, options = nil, &metav1.CreateOptions{}
	case admission.Delete:
		now, options = nil, &metav1.DeleteOptions{}
	}
	must.True(t, plugin.Handles(r.operation), "the plugin does not handle %s", r.operation)
	attributes := admission.NewAttributesRecord(now, old, v1alpha1.SchemeGroupVersion.WithKind("NodeTask"), "", "a",
		v1alpha1.SchemeGroupVersion.WithResource("nodetasks"), r.subresource, r.operation, options, false, u)
	return plugin.Validate(registrytest.Request{User: u, Resource: "nodetasks", Name: "a"}.Context(t.Context()), attributes, nil)
}

// account returns a service account with a token for a pod on a node, or for the node only.
func account(node, pod string) user.Info {
	extra := map[string][]string{}
	if node != "" {
		extra["authentication.kubernetes.io/node-name"] = []string{node}
	}
	if pod != "" {
		extra["authentication.kubernetes.io/pod-name"] = []string{pod}
	}
	return &user.DefaultInfo{Name: "system:serviceaccount:w:w", Groups: []string{"system:serviceaccounts"}, Extra: extra}
}

func TestRights(t *testing.T) {
	kubelet := func(name string) user.Info {
		return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{user.NodesGroup}}
	}
	ann := &user.DefaultInfo{Name: "ann"}
	collector := &user.DefaultInfo{Name: identity.GarbageCollector}
	const another = "may not maintain 1 of the nodes, and so may not work on it"
	const cannot = `cannot progress workers "` + class + `"`
	for name, test := range map[string]struct {
		request request
		user    user.Info
		grants  grants
		want    string
	}{
		"a user creates a task":                 {create, ann, grants{onAll, "delete /nodes a"}, "nodetasks are created by the server"},
		"the server creates a task":             {create, self, nil, ""},
		"the server reports":                    {report, self, nil, ""},
		"a user changes a task":                 {update, ann, grants{onAll}, "only the server changes nodetasks"},
		"a user migrates the storage":           {same, ann, nil, ""},
		"the garbage collector":                 {update, collector, nil, ""},
		"a worker of the class":                 {report, account("", ""), grants{onAll}, ""},
		"a worker of another class":             {report, account("", ""), grants{onOther}, cannot},
		"a worker in a pod elsewhere":           {report, account("b", "p"), grants{onAll}, ""},
		"a user":                                {report, ann, grants{onAll}, ""},
		"a person claims":                       {byHand, ann, grants{asHand, "maintain maintenance.haulout.dev/nodes a"}, ""},
		"a person claims of another pool":       {byHand, ann, grants{asHand, "delete /nodes b"}, another},
		"a person reports":                      {handDone, ann, grants{asHand, "delete /nodes a"}, ""},
		"a person reports of another pool":      {handDone, ann, grants{asHand, "delete /nodes b"}, another},
		"a person who had the right to claim":   {ownDone, ann, grants{asHand, "delete /nodes b"}, ""},
		"but has lost the class of persons":     {ownDone, ann, grants{"delete /nodes a"}, `cannot progress workers "person`},
		"a person who may maintain only":        {handDone, ann, grants{"delete /nodes a"}, `cannot progress workers "person`},
		"a program as a person, elsewhere":      {handDone, account("b", "p"), grants{asHand}, another},
		"a program as a person, on its node":    {handDone, account("a", "p"), grants{asHand, asOwn}, ""},
		"a user without the right":              {report, ann, nil, `user "ann" ` + cannot},
		"a DaemonSet's pod on the node":         {report, account("a", "p"), grants{onOwn}, ""},
		"a DaemonSet's pod elsewhere":           {report, account("b", "p"), grants{onOwn}, cannot},
		"the right to the own node alone":       {report, account("", ""), grants{onOwn}, cannot},
		"a token of the node":                   {report, account("a", ""), grants{onAll}, ""},
		"a token of another node":               {report, account("b", ""), grants{onAll}, `is for node "b" only`},
		"the kubelet of the node":               {report, kubelet("a"), grants{onOwn}, ""},
		"the kubelet of another node":           {report, kubelet("b"), grants{onAll, onOwn}, `is for node "b" only`},
		"who may maintain the node":             {removal, ann, grants{"delete /nodes a"}, ""},
		"who may maintain it by the verb":       {removal, ann, grants{"maintain maintenance.haulout.dev/nodes a"}, ""},
		"who may not maintain the node":         {removal, ann, grants{onAll, "delete /nodes b"}, "may not maintain 1 of the nodes, and so may not take it back from its worker"},
		"who may start over ends failed work":   {late, ann, grants{startOver, "delete /nodes a"}, ""},
		"and no other work":                     {report, ann, grants{startOver, "delete /nodes a"}, cannot},
		"and with success only":                 {failed, ann, grants{startOver, "delete /nodes a"}, cannot},
		"who may only delete the task does not": {late, ann, grants{startOver}, "may not maintain 1 of the nodes"},
		"who may only maintain the node, too":   {late, ann, grants{"delete /nodes a"}, cannot},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := test.request.validate(t, test.user, test.grants); {
			case test.want == "" && err != nil, test.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	err := report.validate(t, ann, grants{"error"})
	is.True(t, apierrors.IsInternalError(err), "the authorizer fails: got %v", err)
}

// TestPoolOfANodeThatIsGone has the operator of pool blue, and a node that was in this pool when
// its maintenance took it. The work on it has failed, and the Node was deleted.
func TestPoolOfANodeThatIsGone(t *testing.T) {
	operator := grants{startOver, "maintain maintenance.haulout.dev/nodepools blue"}
	restart := request{operation: admission.Delete, state: maintenance.NodeTaskFailed}
	for name, test := range map[string]struct {
		request request
		grants  grants
		change  func(nodes cache.Store, nm *v1alpha1.NodeMaintenance)
		want    bool
	}{
		"to start over":                {restart, operator, nil, true},
		"to report that it was done":   {late, operator, nil, true},
		"the operator of another pool": {restart, grants{startOver, "maintain maintenance.haulout.dev/nodepools green"}, nil, false},
		"while the worker works":       {removal, operator, nil, false},
		"a worker registered it again before": {restart, operator, func(_ cache.Store, nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[0].PoolIndex, nm.Status.NodeStatuses[1].NodeRef.Name = nil, "a"
		}, true},
		"a node of the name is in no pool":  {restart, operator, func(nodes cache.Store, _ *v1alpha1.NodeMaintenance) { must.Do(t, nodes.Add(nodeA)) }, false},
		"only another node was in the pool": {restart, operator, func(_ cache.Store, nm *v1alpha1.NodeMaintenance) { nm.Status.NodeStatuses[0].PoolIndex = nil }, false},
		"a later maintenance of the name":   {restart, operator, func(_ cache.Store, nm *v1alpha1.NodeMaintenance) { nm.UID = "uid-later" }, false},
		"the maintenance does not exist":    {restart, operator, func(_ cache.Store, nm *v1alpha1.NodeMaintenance) { nm.Name = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			plugin, nodes, maintenances := newPlugin(t, test.grants)
			must.Do(t, nodes.Delete(nodeA))
			nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "uid-m"}}
			nm.Status.Pools = []string{"blue"}
			for _, node := range []string{"a", "b"} {
				nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
					NodeRef: v1alpha1.NodeReference{Name: node, UID: "u"}, PoolIndex: ptr.To[int32](0),
				})
			}
			if test.change != nil {
				test.change(nodes, nm)
			}
			must.Do(t, maintenances.Add(nm))
			err := test.request.validateBy(t, plugin, &user.DefaultInfo{Name: "ann"})
			is.True(t, test.want && err == nil || !test.want && apierrors.IsForbidden(err), "got %v", err)
		})
	}
}
