// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	// counter is the annotation that the ledger increments.
	counter = "faults.haulout.dev/counter"
	// absent is the value of an object that does not exist.
	absent = -1
	// writeTime is the time that the ledger waits for a response.
	writeTime = 3 * time.Second
	// updates is the number of changes of an object before its deletion.
	updates = 3
)

// ledger writes NodeMaintenances without nodes, and stores which writes the server acknowledged.
type ledger struct {
	client maintenanceclient.NodeMaintenanceInterface
	entry  entry
	// closed has the earlier objects. If the last write of an object had no response, it may still
	// succeed later.
	closed       []entry
	acknowledged int
}

// entry has the possible values of an object: the last acknowledged value, and the value of the
// last write.
type entry struct {
	name                string
	acknowledged, tried int
}

func newLedger(client clientset.Interface) *ledger {
	l := &ledger{client: client.MaintenanceV1alpha1().NodeMaintenances()}
	l.next()
	return l
}

func (l *ledger) next() {
	l.entry = entry{name: framework.Name("ledger"), acknowledged: absent, tried: absent}
}

// write writes until the context ends.
func (l *ledger) write(ctx context.Context) {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		l.writeOnce(ctx)
	}
}

// writeOnce creates, changes or deletes the current object.
func (l *ledger) writeOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	e := &l.entry
	e.tried = e.acknowledged + 1
	var err error
	switch e.acknowledged {
	case absent:
		_, err = l.client.Create(ctx, framework.Maintenance("none", v1alpha1.NodeMaintenanceStageIdle,
			func(nm *v1alpha1.NodeMaintenance) {
				nm.Name, nm.Annotations = e.name, map[string]string{counter: strconv.Itoa(e.tried)}
			}), metav1.CreateOptions{})
	case updates:
		e.tried = absent
		err = l.client.Delete(ctx, e.name, metav1.DeleteOptions{})
	default:
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, counter, e.tried)
		_, err = l.client.Patch(ctx, e.name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		// The server must not process the next write before this one.
		l.closed = append(l.closed, *e)
		l.next()
		return
	}
	l.acknowledged++
	e.acknowledged = e.tried
	if e.acknowledged == absent {
		l.closed = append(l.closed, *e)
		l.next()
	}
}

// check fails the test for each acknowledged write that was lost, and deletes the objects. It reads
// the objects, because a watch may show a value that the storage has lost since.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	// kube-apiserver may take as long as a whole trial to detect that its connections are dead.
	framework.Eventually(t, "the server acknowledges a write", func(ctx context.Context) (bool, error) {
		if l.acknowledged == 0 {
			l.writeOnce(ctx)
		}
		return l.acknowledged > 0, nil
	})
	entries := append(slices.Clone(l.closed), l.entry)
	for _, e := range entries {
		var got int
		framework.Eventually(t, "the object "+e.name+" of the ledger can be read", func(ctx context.Context) (bool, error) {
			nm, err := l.client.Get(ctx, e.name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) || err == nil && nm.DeletionTimestamp != nil:
				got = absent
				return true, nil
			case err != nil:
				return false, err
			}
			got, err = strconv.Atoi(nm.Annotations[counter])
			return true, err
		})
		if got != e.acknowledged && got != e.tried {
			t.Errorf("got %s with the value %d, want %d, which was acknowledged, or %d, which was tried after it (%d: deleted)",
				e.name, got, e.acknowledged, e.tried, absent)
		}
		if got == absent {
			continue
		}
		err := l.client.Delete(t.Context(), e.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Logf("%d writes were acknowledged, %d had no answer", l.acknowledged, len(entries)-1)
}
