// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestLimitOfEvacuationsOfANamespace(t *testing.T) {
	for name, test := range map[string]struct {
		// stored is the number of Evacuations in the namespace, and elsewhere is the number in
		// other namespaces.
		stored, elsewhere int
		pods              int
		byServer, again   bool
		forEviction       bool
		refused           string
		wantCounts        int
	}{
		"the 200th is admitted without counting pods": {stored: 199},
		"the 201st of a namespace with few pods is refused": {
			stored: 200, pods: 3, wantCounts: 1,
			refused: `namespace "blue" has 200 Evacuations, at most 200 are allowed: 2 for each of its 3 pods, or 200 if that is more`,
		},
		"the 201st of a namespace without pods is refused":               {stored: 200, wantCounts: 1, refused: "at most 200"},
		"a namespace with many pods may have two for each":               {stored: 399, pods: 200, wantCounts: 1},
		"a namespace with many pods may not have more than two for each": {stored: 400, pods: 200, wantCounts: 1, refused: "at most 400"},
		"other namespaces do not count":                                  {stored: 10, elsewhere: 1000},
		"the server is not refused":                                      {stored: 1000, byServer: true},
		"the server is refused if it acts for an eviction":               {stored: 200, byServer: true, forEviction: true, wantCounts: 1, refused: "at most 200"},
		"an existing Evacuation is refused only because it exists":       {stored: 1000, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, []string{deletePod, useOurs}, newPod())
			counts := 0
			f.client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				counts++
				if limit := action.(clienttesting.ListActionImpl).ListOptions.Limit; limit != 1 {
					t.Errorf("got a list of %d pods, want one of one pod", limit)
				}
				list := &corev1.PodList{}
				if test.pods > 0 {
					remaining := int64(test.pods - 1)
					list.Items, list.RemainingItemCount = []corev1.Pod{{}}, &remaining
				}
				return true, list, nil
			})
			for i := range test.stored + test.elsewhere {
				namespace := "blue"
				if i >= test.stored {
					namespace = fmt.Sprint("red-", i)
				}
				e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("e-", i)}}
				if test.again && i == 0 {
					e.Name = evacuationName
				}
				must.Do(t, f.stored.Add(e))
			}
			r := request{object: newEvacuation()}
			if test.byServer {
				r.user = server
			}
			if test.forEviction {
				r.object.Finalizers = []string{v1alpha1.FinalizerInstigatorRawEviction}
			}
			for range 2 {
				err := f.validate(r)
				switch {
				case test.refused == "" && err != nil:
					t.Errorf("got %v, want it to be admitted", err)
				case test.refused != "" && (!apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), test.refused)):
					t.Errorf("got %v, want status 429 with %q", err, test.refused)
				}
			}
			is.Equal(t, counts, test.wantCounts, "lists of pods for two requests")
		})
	}
}

// TestKeepKey checks that the cache keeps only the key of each Evacuation.
func TestKeepKey(t *testing.T) {
	e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "blue", Name: "a", UID: "1", ResourceVersion: "2", Labels: map[string]string{"a": "b"}, Finalizers: []string{instigator},
	}}
	kept := must.Get(keepKey(e))(t)
	got, ok := kept.(*metav1.PartialObjectMetadata)
	if !ok || got.Namespace != "blue" || got.Name != "a" || got.UID != "1" || got.ResourceVersion != "2" || got.Labels != nil || got.Finalizers != nil {
		t.Errorf("got %+v, want only the key of the object", kept)
	}
}
