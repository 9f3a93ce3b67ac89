// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"testing"
	"testing/synctest"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func newAttachment(name, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.example.com", NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: to("pv-" + name)},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

func (f *fixture) detach(name string) {
	f.t.Helper()
	attachment, err := f.host.StorageV1().VolumeAttachments().Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	attachment.Status.Attached = false
	if _, err := f.host.StorageV1().VolumeAttachments().UpdateStatus(f.ctx, attachment,
		metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) drainedMessage(name string) string {
	f.t.Helper()
	condition := meta.FindStatusCondition(f.nm(name).Status.Conditions, v1alpha1.ConditionDrained)
	if condition == nil {
		return ""
	}
	return condition.Message
}

// TestAttachedVolumesAreCounted runs the controller, so that only events cause syncs: the
// attachment and detachment of a volume must enqueue the maintenance.
func TestAttachedVolumesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := newAttachment("asked", "one")
		asked.Status.Attached = false
		f := newFixture(t, newNode("one"), newNode("two"), newNode("three"), newNode("green",
			inPool("green")), newMaintenance("m"),
			newAttachment("a", "one"), newAttachment("b", "one"), newAttachment("c", "two"), newAttachment("elsewhere",
				"green"), asked)
		go f.run(1)
		says := func(want string) {
			t.Helper()
			f.ticking("Drained says "+want, func() bool { return f.drainedMessage("m") == want })
		}
		says("All pods have left 3 nodes; 3 volumes are still attached to 2 nodes")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
		f.detach("c")
		says("All pods have left 3 nodes; 2 volumes are still attached to 1 node")
		if err := f.host.StorageV1().VolumeAttachments().Delete(f.ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		says("All pods have left 3 nodes; 1 volume is still attached to 1 node")
		f.create(newAttachment("late", "three"))
		says("All pods have left 3 nodes; 2 volumes are still attached to 2 nodes")
		f.detach("late")
		f.detach("b")
		says("All pods have left 3 nodes")
		if event := f.wantEvent(EventDrained); !strings.Contains(event, "3 volumes are still attached") {
			t.Errorf("got event %q, want the number of volumes", event)
		}
	})
}
