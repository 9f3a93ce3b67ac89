// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	haulscheme "haulout.dev/haulout/pkg/generated/clientset/versioned/scheme"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	nodeName = "worker-1"
	ownUser  = "system:node:worker-1"
	boot     = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	ownName  = "shutdown-worker-1-1b4e28ba"
	pageLen  = 2
)

// api is an API server for the requests of the client. Its paths, codecs, preconditions and errors
// are those of the real server; its storage is a map.
type api struct {
	t      *testing.T
	server *httptest.Server
	client *Client
	config *rest.Config
	events *record.FakeRecorder

	mu      sync.Mutex
	objects map[string]runtime.Object
	version int
	// requests are "VERB path" in order; patches are the bodies of patches by path.
	requests []string
	patches  map[string][]byte
	// before runs before each request is handled, without the lock. If it returns a response, the
	// server sends that response.
	before func(verb, path string) *apierrors.StatusError
	// warning is a warning that the server adds to its responses about maintenances.
	warning string
	// evict returns the response to an eviction request that the node may make; nil accepts the
	// request.
	evict func(eviction *policyv1.Eviction) *metav1.Status
	// evictions are the accepted evictions.
	evictions []*policyv1.Eviction
	// older is set if the server does not support field selectors for maintenances. listed is the
	// number of maintenances in all returned lists.
	older  bool
	listed int
	// finalizer is set if the server keeps deleted maintenances, as it does until the nodes are
	// released.
	finalizer bool
}

func newAPI(t *testing.T, objects ...runtime.Object) *api {
	t.Helper()
	a := &api{t: t, objects: map[string]runtime.Object{}, patches: map[string][]byte{}, events: record.NewFakeRecorder(10)}
	for _, object := range objects {
		a.put(pathOf(object), object)
	}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.server.Close)
	config := &rest.Config{Host: a.server.URL, QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
	}}
	client := must.Get(New(Config{NodeName: nodeName, REST: config, Recorder: a.events}))(t)
	a.client, a.config = client, config
	return a
}

func pathOf(object runtime.Object) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	switch object.(type) {
	case *corev1.Node:
		return "/api/v1/nodes/" + accessor.GetName()
	case *corev1.Pod:
		return "/api/v1/namespaces/" + accessor.GetNamespace() + "/pods/" + accessor.GetName()
	}
	return maintenancesPath + "/" + accessor.GetName()
}

var maintenancesPath = "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/nodemaintenances"

// put stores an object with a new resource version.
func (a *api) put(path string, object runtime.Object) {
	object = object.DeepCopyObject()
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	a.version++
	accessor.SetResourceVersion(strconv.Itoa(a.version))
	if accessor.GetUID() == "" {
		accessor.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version)))
	}
	a.objects[path] = object
}

// maintenance returns a stored maintenance, or nil.
func (a *api) maintenance(name string) *v1alpha1.NodeMaintenance {
	a.mu.Lock()
	defer a.mu.Unlock()
	nm, _ := a.objects[maintenancesPath+"/"+name].(*v1alpha1.NodeMaintenance)
	return nm
}

func (a *api) pod(name string) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, _ := a.objects["/api/v1/namespaces/default/pods/"+name].(*corev1.Pod)
	return pod
}

func (a *api) node() *corev1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	node, _ := a.objects["/api/v1/nodes/"+nodeName].(*corev1.Node)
	return node
}

// count returns the number of requests that start with a prefix.
func (a *api) count(prefix string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, request := range a.requests {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	return n
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	before := a.before
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	a.mu.Unlock()
	if before != nil {
		if err := before(r.Method, r.URL.Path); err != nil {
			respond(w, int(err.ErrStatus.Code), &err.ErrStatus)
			return
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.warning != "" && strings.HasPrefix(r.URL.Path, maintenancesPath) {
		w.Header().Add("Warning", `299 - "`+a.warning+`"`)
	}
	object, code, failure := a.handle(r, body)
	if failure != nil {
		respond(w, int(failure.ErrStatus.Code), &failure.ErrStatus)
		return
	}
	respond(w, code, object)
}

func respond(w http.ResponseWriter, code int, object runtime.Object) {
	group := corev1.SchemeGroupVersion
	codecs := kubescheme.Codecs
	switch object.(type) {
	case *v1alpha1.NodeMaintenance, *v1alpha1.NodeMaintenanceList:
		group, codecs = v1alpha1.SchemeGroupVersion, haulscheme.Codecs
	case *authenticationv1.SelfSubjectReview:
		group = authenticationv1.SchemeGroupVersion
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(runtime.EncodeOrDie(codecs.LegacyCodec(group), object)))
}

func (a *api) handle(r *http.Request, body []byte) (runtime.Object, int, *apierrors.StatusError) {
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	switch {
	case r.Method == http.MethodPost && path == maintenancesPath:
		return a.create(body)
	case r.Method == http.MethodGet && path == maintenancesPath:
		return a.list(r.URL.Query().Get("continue"), r.URL.Query().Get("fieldSelector"))
	case r.Method == http.MethodPost && path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		return &authenticationv1.SelfSubjectReview{
			Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: ownUser}},
		}, http.StatusCreated, nil
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/pods"):
		return a.listPods(path, r.URL.Query().Get("fieldSelector"))
	}
	path, isEviction := strings.CutSuffix(path, "/eviction")
	object := a.objects[path]
	if strings.Contains(path, "/pods/") {
		if failure := authorize(object, path); failure != nil {
			return nil, 0, failure
		}
	}
	if isEviction {
		return a.evictPod(path, object.(*corev1.Pod), body)
	}
	if object == nil {
		return nil, 0, apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, path)
	}
	switch r.Method {
	case http.MethodGet:
		return object, http.StatusOK, nil
	case http.MethodDelete:
		return a.remove(path, object.(*v1alpha1.NodeMaintenance), body)
	case http.MethodPatch:
		if _, isPod := object.(*corev1.Pod); isPod && !status {
			a.t.Errorf("patch of %s: the agent writes the status of pods", r.URL.Path)
		}
		return a.patch(path, object, r.Header.Get("Content-Type"), body)
	}
	return nil, 0, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "objects"}, r.Method)
}

// authorize behaves like the authorizer and the admission plugin for nodes: they treat a pod that
// does not exist like a pod of another node.
func authorize(object runtime.Object, path string) *apierrors.StatusError {
	if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == nodeName {
		return nil
	}
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, path, fmt.Errorf("no relationship found between node '%s' and this object", nodeName))
}

// listPods lists the pods of the node, in one namespace or in all. It refuses other lists.
func (a *api) listPods(path, selector string) (runtime.Object, int, *apierrors.StatusError) {
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	if node, exact := parsed.RequiresExactMatch("spec.nodeName"); !exact || node != nodeName {
		return nil, 0, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("can only list pods with spec.nodeName"))
	}
	list := &corev1.PodList{}
	for key, object := range a.objects {
		pod, ok := object.(*corev1.Pod)
		if ok && (path == "/api/v1/pods" || strings.HasPrefix(key, path+"/")) &&
			parsed.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "metadata.name": pod.Name}) {
			list.Items = append(list.Items, *pod)
		}
	}
	return list, http.StatusOK, nil
}

func (a *api) evictPod(path string, pod *corev1.Pod, body []byte) (runtime.Object, int, *apierrors.StatusError) {
	object, _, err := kubescheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	eviction := object.(*policyv1.Eviction)
	if p := eviction.DeleteOptions; p == nil || p.Preconditions == nil || p.Preconditions.UID == nil || *p.Preconditions.UID != pod.UID {
		return nil, 0, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, fmt.Errorf("the UID is %s", pod.UID))
	}
	if a.evict != nil {
		if status := a.evict(eviction); status != nil && status.Code == http.StatusInternalServerError {
			return status, http.StatusCreated, nil // as the real server does for several budgets
		} else if status != nil {
			return nil, 0, &apierrors.StatusError{ErrStatus: *status}
		}
	}
	a.evictions = append(a.evictions, eviction)
	delete(a.objects, path)
	return &metav1.Status{Status: metav1.StatusSuccess}, http.StatusCreated, nil
}

func (a *api) create(body []byte) (runtime.Object, int, *apierrors.StatusError) {
	object, _, err := haulscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	nm := object.(*v1alpha1.NodeMaintenance)
	path := maintenancesPath + "/" + nm.Name
	if a.objects[path] != nil {
		return nil, 0, apierrors.NewAlreadyExists(v1alpha1.Resource("nodemaintenances"), nm.Name)
	}
	nm.Generation = 1
	nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: ownUser}
	a.put(path, nm)
	return a.objects[path], http.StatusCreated, nil
}

// list returns pages of pageLen objects, regardless of the limit in the request.
func (a *api) list(from, selector string) (runtime.Object, int, *apierrors.StatusError) {
	parsed, err := fields.ParseSelector(selector)
	if err != nil || a.older && selector != "" {
		return nil, 0, apierrors.NewBadRequest("field label not supported")
	}
	var paths []string
	for path, object := range a.objects {
		nm, ok := object.(*v1alpha1.NodeMaintenance)
		if ok && path > from && parsed.Matches(fields.Set{"nodeOfShutdown": protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector)}) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	list := &v1alpha1.NodeMaintenanceList{}
	for i, path := range paths {
		if i == pageLen {
			list.Continue = paths[i-1]
			break
		}
		list.Items = append(list.Items, *a.objects[path].(*v1alpha1.NodeMaintenance))
	}
	a.listed += len(list.Items)
	return list, http.StatusOK, nil
}

func (a *api) remove(path string, nm *v1alpha1.NodeMaintenance, body []byte) (runtime.Object, int, *apierrors.StatusError) {
	options := &metav1.DeleteOptions{}
	if _, _, err := haulscheme.Codecs.UniversalDeserializer().Decode(body, nil, options); err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	if p := options.Preconditions; p == nil || p.UID == nil || *p.UID != nm.UID {
		return nil, 0, apierrors.NewConflict(v1alpha1.Resource("nodemaintenances"), nm.Name, fmt.Errorf("the UID is %s", nm.UID))
	}
	if a.finalizer {
		deleted := nm.DeepCopy()
		now := metav1.Now()
		deleted.DeletionTimestamp = &now
		a.put(path, deleted)
	} else {
		delete(a.objects, path)
	}
	return nm, http.StatusOK, nil
}

// patch applies a patch; a UID or a resource version in it is a precondition, as in the real
// server.
func (a *api) patch(path string, object runtime.Object, contentType string, body []byte) (runtime.Object, int, *apierrors.StatusError) {
	a.patches[path] = body
	var partial metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &partial); err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, 0, apierrors.NewInternalError(err)
	}
	if partial.UID != "" && partial.UID != accessor.GetUID() || partial.ResourceVersion != "" && partial.ResourceVersion != accessor.GetResourceVersion() {
		return nil, 0, apierrors.NewConflict(schema.GroupResource{Resource: "objects"}, accessor.GetName(), fmt.Errorf("the precondition failed"))
	}
	before, err := json.Marshal(object)
	if err != nil {
		return nil, 0, apierrors.NewInternalError(err)
	}
	// Haulout's API only supports the merge patch; without lists, both kinds of patch are equal.
	if _, isMaintenance := object.(*v1alpha1.NodeMaintenance); isMaintenance && contentType != string(types.MergePatchType) {
		return nil, 0, apierrors.NewBadRequest("unexpected type of patch " + contentType)
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, object)
	if err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	// Decode into a new object: a copy would keep the map keys that the patch has removed.
	changed := reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(after, changed); err != nil {
		return nil, 0, apierrors.NewInternalError(err)
	}
	a.put(path, changed)
	return a.objects[path], http.StatusOK, nil
}
