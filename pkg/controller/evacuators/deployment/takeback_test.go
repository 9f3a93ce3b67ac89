// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/host/inflight"
)

func TestCancelledSurgeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		w.must(w.own.MaintenanceV1alpha1().Evacuations(testNamespace).Delete(t.Context(), web0, metav1.DeleteOptions{}))
		w.scaled(1, false)
		if _, err := w.host.CoreV1().Pods(testNamespace).Get(t.Context(), "web-0", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestCancelledSurgeIsKeptUntilEvictionsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.reported("web-0", true, "available in its place")
		w.inFlight.Add(inflight.Eviction{UID: "uid-web-0"})
		w.must(w.own.MaintenanceV1alpha1().Evacuations(testNamespace).Delete(t.Context(), web0, metav1.DeleteOptions{}))
		<-time.After(time.Minute)
		synctest.Wait()
		w.scaled(2, true)
		w.inFlight.Remove("uid-web-0")
		w.scaled(1, false)
	})
}

func TestSurgeDoesNotGrowFromTheNumberOfAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeployment(2, recorded(1, 2, web0), surging("2"))
		d.ManagedFields = replicasManagedBy("kubectl")
		evacuations, host := scene()
		other := newTestPod("web-1", leaves(ours), on("drained"))
		host[0] = d
		w := newWorld(t, append(evacuations, other.evacuation), append(host, other.Pod)...)
		// Both pods leave in a surge of their own, which is taken back to the number of the user.
		w.scaled(4, true)
		r, _ := readRecord(w.deployment(), 1)
		if r.From != 2 {
			t.Errorf("the surge is from %d to %d", r.From, r.To)
		}
	})
}

func replicasManagedBy(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`),
	}}
}

func TestSurgeOfAnotherTimeIsTakenBack(t *testing.T) {
	leftBehind := func(manager string) *appsv1.Deployment {
		d := newDeployment(2, recorded(1, 2, web0))
		d.ManagedFields = replicasManagedBy(manager)
		return d
	}
	t.Run("if the number is still ours", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, leftBehind(fieldManager), newReplicaSet())
			w.scaled(1, false)
		})
	})
	t.Run("and left as it is if a rollback has brought the record back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, leftBehind("kubectl"), newReplicaSet())
			w.scaled(2, false)
		})
	})
}
