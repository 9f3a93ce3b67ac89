// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deletioncost

import (
	"encoding/json"
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	costKey     = "controller.kubernetes.io/pod-deletion-cost"
	originalKey = "maintenance.haulout.dev/original-pod-deletion-cost"
	lowest      = "-2147483647"
)

// newPod returns a pod. pairs are the keys and values of its annotations.
func newPod(pairs ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "uid-0", ResourceVersion: "1"},
	}
	for i := 0; i < len(pairs); i += 2 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, pairs[i], pairs[i+1])
	}
	return pod
}

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want int32
		ok   bool
	}{
		"no cost is 0":                           {newPod(), 0, true},
		"0":                                      {newPod(costKey, "0"), 0, true},
		"a positive cost":                        {newPod(costKey, "10"), 10, true},
		"a negative cost":                        {newPod(costKey, "-10"), -10, true},
		"the greatest":                           {newPod(costKey, "2147483647"), 2147483647, true},
		"the least":                              {newPod(costKey, "-2147483648"), -2147483648, true},
		"more than the greatest":                 {newPod(costKey, "2147483648"), 0, false},
		"an empty value":                         {newPod(costKey, ""), 0, false},
		"a word":                                 {newPod(costKey, "low"), 0, false},
		"a fraction":                             {newPod(costKey, "1.5"), 0, false},
		"a plus sign":                            {newPod(costKey, "+1"), 0, false},
		"a leading zero":                         {newPod(costKey, "010"), 0, false},
		"a lowered cost is the original one":     {newPod(costKey, lowest, originalKey, "7"), 7, true},
		"no cost that was lowered is 0":          {newPod(costKey, lowest, originalKey, ""), 0, true},
		"the lowest cost, set by a user":         {newPod(costKey, lowest), -2147483647, true},
		"a lowered cost that a user has changed": {newPod(costKey, "3", originalKey, "7"), 3, true},
		"a lowered cost that a user has removed": {newPod(originalKey, "7"), 0, true},
		"a lowered cost that a user has changed to no number": {newPod(costKey, "low", originalKey, "7"), 0, false},
		"an invalid value in our annotation":                  {newPod(costKey, lowest, originalKey, "low"), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := Of(tc.pod); got != tc.want || ok != tc.ok {
				t.Errorf("got %d, %v, want %d, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestLowerAndRestore(t *testing.T) {
	type meanwhile func(annotations map[string]string)
	nothing := func(map[string]string) {}
	for name, tc := range map[string]struct {
		before    map[string]string
		lowered   map[string]string
		meanwhile meanwhile
		after     map[string]string
	}{
		"no cost": {
			before: nil, lowered: map[string]string{costKey: lowest, originalKey: ""}, meanwhile: nothing, after: nil,
		},
		"a cost beside another annotation": {
			before:  map[string]string{costKey: "7", "owner": "shop"},
			lowered: map[string]string{costKey: lowest, originalKey: "7", "owner": "shop"}, meanwhile: nothing,
			after: map[string]string{costKey: "7", "owner": "shop"},
		},
		"a cost of 0": {
			before: map[string]string{costKey: "0"}, lowered: map[string]string{costKey: lowest, originalKey: "0"},
			meanwhile: nothing, after: map[string]string{costKey: "0"},
		},
		"a cost that a user changes while it is lowered stays changed": {
			before: map[string]string{costKey: "7"}, lowered: map[string]string{costKey: lowest, originalKey: "7"},
			meanwhile: func(a map[string]string) { a[costKey] = "9" }, after: map[string]string{costKey: "9"},
		},
		"a cost that a user removes while it is lowered stays removed": {
			before: map[string]string{costKey: "7"}, lowered: map[string]string{costKey: lowest, originalKey: "7"},
			meanwhile: func(a map[string]string) { delete(a, costKey) }, after: nil,
		},
		"a malformed cost is not changed, since it could not be restored": {
			before: map[string]string{costKey: "low"}, lowered: map[string]string{costKey: "low"}, meanwhile: nothing,
			after: map[string]string{costKey: "low"},
		},
		"the lowest cost is not changed": {
			before: map[string]string{costKey: lowest}, lowered: map[string]string{costKey: lowest}, meanwhile: nothing,
			after: map[string]string{costKey: lowest},
		},
		"a cost below the lowest is not changed": {
			before: map[string]string{costKey: "-2147483648"}, lowered: map[string]string{costKey: "-2147483648"},
			meanwhile: nothing, after: map[string]string{costKey: "-2147483648"},
		},
		"an invalid value that a user wrote into our annotation is not restored": {
			before: map[string]string{costKey: "7"}, lowered: map[string]string{costKey: lowest, originalKey: "7"},
			meanwhile: func(a map[string]string) { a[originalKey] = "low" }, after: nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod()
			pod.Annotations = tc.before
			c := newCluster(t, pod)
			c.lower(pod)
			c.want("after lowering", tc.lowered)
			c.lower(c.pod())
			c.want("after lowering again", tc.lowered)
			changed := c.pod()
			if changed.Annotations != nil {
				tc.meanwhile(changed.Annotations)
				c.update(changed)
			}
			c.restore(c.pod())
			c.want("after restoring", tc.after)
			c.restore(c.pod())
			c.want("after restoring again", tc.after)
		})
	}
}

func TestACostThatWasChangedIsNotLoweredAgain(t *testing.T) {
	c := newCluster(t, newPod(costKey, "9", originalKey, "7"))
	is.True(t, !CanLower(c.pod()), "got a pod that can be lowered, want the change of the user to stay")
	c.lower(c.pod())
	c.want("after lowering", map[string]string{costKey: "9", originalKey: "7"})
}

func TestStalePods(t *testing.T) {
	t.Run("the recorded cost is that at the time of the write, not in the cache", func(t *testing.T) {
		c := newCluster(t, newPod(costKey, "7"))
		stale := c.pod()
		changed := c.pod()
		changed.Annotations[costKey] = "8"
		c.update(changed)
		c.lower(stale)
		c.want("after lowering", map[string]string{costKey: lowest, originalKey: "8"})
	})
	t.Run("a cost that a user changes before the write is not overwritten", func(t *testing.T) {
		c := newCluster(t, newPod(costKey, lowest, originalKey, "7"))
		stale := c.pod()
		changed := c.pod()
		changed.Annotations[costKey] = "8"
		c.update(changed)
		c.restore(stale)
		c.want("after restoring", map[string]string{costKey: "8"})
	})
	t.Run("another pod with the same name is not changed", func(t *testing.T) {
		c := newCluster(t, newPod(costKey, "7"))
		old := c.pod()
		old.UID = "uid-before"
		c.lower(old)
		c.want("after lowering", map[string]string{costKey: "7"})
	})
	t.Run("a deleted pod is no error", func(t *testing.T) {
		c := newCluster(t, newPod())
		gone := newPod()
		gone.Name = "web-1"
		c.lower(gone)
	})
	t.Run("a pod that changes before each write is an error, and a conflict", func(t *testing.T) {
		c := newCluster(t, newPod())
		pod := c.pod()
		// Do not use the client here: this function runs within a call of the client.
		c.interfere = func() { c.update(pod.DeepCopy()) }
		if err := Lower(t.Context(), c.client, pod); !apierrors.IsConflict(err) {
			t.Errorf("got %v, want a conflict", err)
		}
	})
}

// cluster is a fake cluster that checks the preconditions of writes as the API server does.
type cluster struct {
	*testing.T
	client  *fake.Clientset
	version int
	// interfere is called before a patch is handled.
	interfere func()
}

func newCluster(t *testing.T, pod *corev1.Pod) *cluster {
	t.Helper()
	c := &cluster{T: t, client: fake.NewClientset(pod), version: 1, interfere: func() {}}
	c.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.interfere()
		patch := action.(clienttesting.PatchAction)
		stored, err := c.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), patch.GetNamespace(),
			patch.GetName())
		if err != nil {
			return true, nil, err
		}
		var body struct {
			Metadata struct {
				UID             types.UID          `json:"uid"`
				ResourceVersion string             `json:"resourceVersion"`
				Annotations     map[string]*string `json:"annotations"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
			return true, nil, err
		}
		pod := stored.(*corev1.Pod).DeepCopy()
		if pod.UID != body.Metadata.UID || pod.ResourceVersion != body.Metadata.ResourceVersion {
			return true, nil, apierrors.NewConflict(corev1.Resource("pods"), pod.Name, nil)
		}
		for key, value := range body.Metadata.Annotations {
			delete(pod.Annotations, key)
			if value != nil {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, *value)
			}
		}
		return true, pod, c.store(pod)
	})
	return c
}

func (c *cluster) store(pod *corev1.Pod) error {
	c.version++
	pod.ResourceVersion = strconv.Itoa(c.version)
	return c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
}

func (c *cluster) update(pod *corev1.Pod) {
	c.Helper()
	must.Do(c, c.store(pod))
}

func (c *cluster) pod() *corev1.Pod {
	c.Helper()
	return must.Get(c.client.CoreV1().Pods("shop").Get(c.Context(), "web-0", metav1.GetOptions{}))(c)
}

func (c *cluster) lower(pod *corev1.Pod) {
	c.Helper()
	must.Do(c, Lower(c.Context(), c.client, pod))
}

func (c *cluster) restore(pod *corev1.Pod) {
	c.Helper()
	must.Do(c, Restore(c.Context(), c.client, pod))
}

func (c *cluster) want(when string, annotations map[string]string) {
	c.Helper()
	if got := c.pod().Annotations; !maps.Equal(got, annotations) {
		c.Errorf("%s: got %v, want %v", when, got, annotations)
	}
}
