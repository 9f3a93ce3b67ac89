// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// apiAnswer is a response of the API server to an eviction.
type apiAnswer struct {
	code   int
	header map[string]string
	status metav1.Status
}

// apiServer responds to evictions with answer, and to reads with the pod of the requested name.
type apiServer struct {
	answer apiAnswer
	pods   map[string]*corev1.Pod

	mu sync.Mutex
	// requests has the method and the path of each request, patches the body of each patch.
	requests []string
	patches  []string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	reply := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	switch {
	case r.Method == http.MethodPost:
		for key, value := range s.answer.header {
			w.Header().Set(key, value)
		}
		status := s.answer.status
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		reply(s.answer.code, status)
	case r.Method == http.MethodPatch:
		s.patches = append(s.patches, string(body))
		reply(http.StatusOK, &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}})
	default:
		for name, pod := range s.pods {
			if r.URL.Path == "/api/v1/namespaces/shop/pods/"+name {
				reply(http.StatusOK, pod)
				return
			}
		}
		reply(http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404,
		})
	}
}

func (s *apiServer) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(s.requests), func(r string) bool { return r[:len(method)] != method }))
}

func serve(t *testing.T, s *apiServer) clientset.Interface {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestAnswers sends the gate the responses of Kubernetes v1.37.1 to an eviction. For each response,
// the gate must send one request, and delete the unguarded victim only if the guarded one is
// evicted or gone.
func TestAnswers(t *testing.T) {
	failure := func(code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) metav1.Status {
		return metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes}}
	}
	closed := metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"}
	retryAfter := map[string]string{"Retry-After": "1"}
	other := runningPod("a", 10)
	other.UID = "uid-other"
	other.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	same := runningPod("a", 10)
	same.TypeMeta = other.TypeMeta
	for name, test := range map[string]struct {
		answer apiAnswer
		// now is the current pod with the name of the victim.
		now *corev1.Pod
		// counted is the label of the response in the metric.
		counted string
		goes    bool
	}{
		"201":                   {apiAnswer{201, nil, metav1.Status{Status: metav1.StatusSuccess}}, same, answerEvicted, true},
		"201 with a failure":    {apiAnswer{201, nil, failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")}, same, answerError, false},
		"404":                   {apiAnswer{404, nil, failure(404, metav1.StatusReasonNotFound, `pods "a" not found`)}, nil, answerGone, true},
		"409, another pod":      {apiAnswer{409, nil, failure(409, metav1.StatusReasonConflict, "the UID in the precondition does not match")}, other, answerGone, true},
		"409, no pod":           {apiAnswer{409, nil, failure(409, metav1.StatusReasonConflict, "the UID in the precondition does not match")}, nil, answerGone, true},
		"409, the same pod":     {apiAnswer{409, nil, failure(409, metav1.StatusReasonConflict, "the object has been modified")}, same, answerError, false},
		"429 by a budget":       {apiAnswer{429, nil, failure(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod", closed)}, same, answerBudget, false},
		"429 by a stale budget": {apiAnswer{429, retryAfter, failure(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod", closed)}, same, answerBudget, false},
		"429 without a cause":   {apiAnswer{429, retryAfter, failure(429, metav1.StatusReasonTooManyRequests, "too many requests")}, same, answerError, false},
		"403":                   {apiAnswer{403, nil, failure(403, metav1.StatusReasonForbidden, "by a webhook")}, same, answerForbidden, false},
		"500":                   {apiAnswer{500, nil, failure(500, metav1.StatusReasonInternalError, "broken")}, same, answerError, false},
		"504":                   {apiAnswer{504, nil, failure(504, metav1.StatusReasonTimeout, "couldn't update PodDisruptionBudget due to conflicts")}, same, answerError, false},
		"503 with Retry-After":  {apiAnswer{503, retryAfter, failure(503, metav1.StatusReasonServiceUnavailable, "overloaded")}, same, answerError, false},
	} {
		t.Run(name, func(t *testing.T) {
			victims := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10)}
			w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 2)}, victims...)
			server := &apiServer{answer: test.answer, pods: map[string]*corev1.Pod{}}
			if test.now != nil {
				server.pods["a"] = test.now
			}
			w.handle.api = serve(t, server)
			w.evictPod = evict.Client{Host: w.handle.api}.Evict
			before, err := testutil.GetCounterMetricValue(evictions.WithLabelValues(test.counted))
			if err != nil {
				t.Fatal(err)
			}
			err = w.preemptAll(t, &fakeCandidate{victims: victims}, preemptorOf(100))
			is.True(t, (err == nil) == test.goes, "got error %v", err)
			if test.goes {
				w.wantCalls(t, "delete b")
			} else {
				w.wantCalls(t)
				w.wantLastEvent(t, test.answer.status.Message)
			}
			if got := server.count(http.MethodPost); got != 1 {
				t.Errorf("the API server got %d requests: %q", got, server.requests)
			}
			if after, _ := testutil.GetCounterMetricValue(evictions.WithLabelValues(test.counted)); after != before+1 {
				t.Errorf("the response was not counted as %s", test.counted)
			}
			if marked := server.count(http.MethodPatch) > 0; marked != (test.counted == answerEvicted) {
				t.Errorf("the condition of the victim was set: %v", marked)
			}
			for _, patch := range server.patches {
				var got metav1.PartialObjectMetadata
				if err := json.Unmarshal([]byte(patch), &got); err != nil || got.UID != "uid-a" {
					t.Errorf("the patch has no UID of the pod: %s", patch)
				}
			}
		})
	}
}

// TestReplacedVictim lets a drain evict a victim before the gate evicts it. If its StatefulSet has
// recreated it, the new pod of the same name is not a victim.
func TestReplacedVictim(t *testing.T) {
	for name, replaced := range map[string]bool{"gone": false, "recreated": true} {
		t.Run(name, func(t *testing.T) {
			chosen := []*corev1.Pod{runningPod("db-0", 10, ofClass("guarded")), runningPod("db-1", 10)}
			var now []*corev1.Pod
			if replaced {
				for _, pod := range chosen {
					pod = pod.DeepCopy()
					pod.UID = types.UID(fmt.Sprintf("uid-new-%s", pod.Name))
					now = append(now, pod)
				}
			}
			w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}, now...)
			must.Do(t, w.preemptAll(t, &fakeCandidate{victims: chosen}, preemptorOf(100)))
			w.wantCalls(t)
			if got := w.handle.names(); !slices.Equal(got, []string{"pending"}) {
				t.Errorf("got %q activated, want the pending pod: no event of a victim will activate it", got)
			}
		})
	}
}
