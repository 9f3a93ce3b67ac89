// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	typed "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// hangs is in the names of the pods about whose Evacuations a webhook does not answer for 10 s.
const hangs = "hangs-"

// hangingReports is a client that counts the reports to each Evacuation.
type hangingReports struct {
	versioned.Interface
	sent map[string]int
}

type hangingGroup struct {
	typed.MaintenanceV1alpha1Interface
	sent map[string]int
}

type hangingEvacuations struct {
	typed.EvacuationInterface
	sent map[string]int
}

func (h hangingReports) MaintenanceV1alpha1() typed.MaintenanceV1alpha1Interface {
	return hangingGroup{h.Interface.MaintenanceV1alpha1(), h.sent}
}

func (h hangingGroup) Evacuations(namespace string) typed.EvacuationInterface {
	return hangingEvacuations{h.MaintenanceV1alpha1Interface.Evacuations(namespace), h.sent}
}

func (h hangingEvacuations) UpdateStatus(
	ctx context.Context, e *maintenancev1alpha1.Evacuation, o metav1.UpdateOptions,
) (*maintenancev1alpha1.Evacuation, error) {
	h.sent[e.Name]++
	if !strings.Contains(e.Name, hangs) {
		return h.EvacuationInterface.UpdateStatus(ctx, e, o)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	return nil, apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
}

// TestHangingReportsDoNotHoldBackOthers has 100 reports that hang before one that does not.
func TestHangingReportsDoNotHoldBackOthers(t *testing.T) {
	const broken = 100
	synctest.Test(t, func(t *testing.T) {
		var d decision
		for i := range broken {
			p := newTestPod(fmt.Sprintf("%s%d", hangs, i), leaves(ours))
			d.reports = append(d.reports, report{evacuation: p.evacuation, message: "Waits.", progress: true})
		}
		sound := newTestPod("web-0", leaves(ours)).evacuation
		d.reports = append(d.reports, report{evacuation: sound, message: "Waits.", progress: true})
		client, own := fake.NewClientset(), versionedfake.NewClientset(sound)
		c, err := New(Config{
			Host:          client,
			HostInformers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(controllercache.NewTransform())),
			Maintenance:   own, MaintenanceInformers: externalversions.NewSharedInformerFactory(own, 0),
			Recorder: events.NewFakeRecorder(10),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.queue.ShutDown()
		sent := map[string]int{}
		c.maintenance = hangingReports{own, sent}
		key := types.NamespacedName{Namespace: testNamespace, Name: testName}
		sync := func() {
			t.Helper()
			begun := time.Now()
			c.known.haveLooked(key, begun, broken+1)
			if _, err := c.act(t.Context(), key, situation{now: begun}, d); err == nil {
				t.Error("got no error")
			}
			if took := time.Since(begun); took > loop.StuckAfter/10 {
				t.Errorf("a sync took %s", took)
			}
		}
		for range broken {
			sync()
		}
		if got := c.queue.Len(); got != 1 {
			t.Errorf("%d items are to be synced immediately, want 1: one report was not tried", got)
		}
		// All were tried once.
		sync()
		if sent[sound.Name] != 1 || len(sent) != broken+1 {
			t.Errorf("%d reports to %d Evacuations were written: %v", sent[sound.Name], len(sent), sent)
		}
		for range broken {
			sync()
		}
		for name, times := range sent {
			if want := map[bool][2]int{true: {2, 3}, false: {broken + 1, broken + 1}}[name != sound.Name]; times < want[0] || times > want[1] {
				t.Errorf("%d reports to %s, want %v", times, name, want)
			}
		}
	})
}
