// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

func TestLooksAtALargeDeploymentPause(t *testing.T) {
	key, now := types.NamespacedName{Namespace: testNamespace, Name: testName}, start
	for name, tc := range map[string]struct {
		pods int
		want time.Duration
	}{
		"one pod is reconciled again immediately":              {1, 400 * time.Microsecond},
		"hundreds of pods are reconciled a few times a second": {600, 240 * time.Millisecond},
		"the pause is bounded":                                 {100000, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			known := newTracked()
			if !known.nextLook(key).IsZero() {
				t.Error("the first look is put off")
			}
			known.haveLooked(key, now, tc.pods)
			if got := known.nextLook(key).Sub(now); got != tc.want {
				t.Errorf("got a pause of %s, want %s", got, tc.want)
			}
		})
	}
}

// BenchmarkLook is one look at a Deployment of 600 pods that all leave, under a surge for a third
// of them.
func BenchmarkLook(b *testing.B) {
	const pods = 600
	evacuations := make([]runtime.Object, 0, pods)
	host := []runtime.Object{newReplicaSet(), newBudget(), newNode("drained", true), newNode("good", false)}
	names := make([]string, 0, pods)
	for i := range pods {
		p := newTestPod(fmt.Sprintf("web-%d", i), leaves(ours), on("drained"))
		evacuations, host = append(evacuations, p.evacuation), append(host, p.Pod)
		names = append(names, p.evacuation.Name)
	}
	host = append(host, newDeployment(pods+150, recorded(pods, pods+150, names[:maxRecorded]...)))
	c := newIdle(b, evacuations, host)
	key := types.NamespacedName{Namespace: testNamespace, Name: testName}
	for b.Loop() {
		s, err := c.gather(b.Context(), key)
		if err != nil {
			b.Fatal(err)
		}
		if len(s.pods) != pods {
			b.Fatalf("got %d pods, want %d", len(s.pods), pods)
		}
		decide(s)
	}
}

// newIdle returns a controller that knows the objects and does nothing with them.
func newIdle(tb testing.TB, evacuations, host []runtime.Object) *Controller {
	tb.Helper()
	hostClient, own := fake.NewClientset(host...), versionedfake.NewClientset(evacuations...)
	hostInformers := informers.NewSharedInformerFactoryWithOptions(hostClient, 0,
		informers.WithTransform(controllercache.NewTransform()))
	ownInformers := externalversions.NewSharedInformerFactory(own, 0)
	c, err := New(Config{
		Host: hostClient, HostInformers: hostInformers, Maintenance: own, MaintenanceInformers: ownInformers,
	})
	if err != nil {
		tb.Fatal(err)
	}
	hostInformers.Start(tb.Context().Done())
	ownInformers.Start(tb.Context().Done())
	tb.Cleanup(func() {
		hostInformers.Shutdown()
		ownInformers.Shutdown()
	})
	hostInformers.WaitForCacheSync(tb.Context().Done())
	ownInformers.WaitForCacheSync(tb.Context().Done())
	return c
}
