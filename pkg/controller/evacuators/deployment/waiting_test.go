// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// attachment is a volume on a node.
func attachment(volume, node string, attached bool, failure string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume + "-" + node},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volume)},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: attached},
	}
	if failure != "" {
		a.Status.AttachError = &storagev1.VolumeError{Message: failure}
	}
	return a
}

func TestWhereAttached(t *testing.T) {
	for name, tc := range map[string]struct {
		forOneNode  bool
		attachments []any
		want        string
	}{
		"a volume that is nowhere yet": {forOneNode: true},
		"a volume on another node": {
			forOneNode: true, attachments: []any{attachment("pv", "node-7", true, "")},
			want: "still attached to node-7",
		},
		"a volume that another node has asked for": {
			forOneNode: true, attachments: []any{attachment("pv", "node-7", false, "")},
			want: "still attached to node-7",
		},
		"a volume that is here, too": {
			forOneNode:  true,
			attachments: []any{attachment("pv", "node-7", true, ""), attachment("pv", "here", true, "")},
		},
		"a volume that many nodes can use": {attachments: []any{attachment("pv", "node-7", true, "")}},
		"a volume that cannot be attached": {
			attachments: []any{attachment("pv", "here", false, "too many volumes")},
			want:        "cannot be attached to here: too many volumes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, whereAttached("here", tc.forOneNode, tc.attachments), tc.want)
		})
	}
}

func TestHasStarted(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	for name, tc := range map[string]struct {
		init, main []corev1.ContainerStatus
		want       bool
	}{
		"a pod that the kubelet has not seen": {},
		"a pod whose volumes are awaited":     {main: []corev1.ContainerStatus{{State: waiting}}},
		"a pod whose init container runs": {
			init: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			main: []corev1.ContainerStatus{{State: waiting}}, want: true,
		},
		"a pod whose container is to be started again": {
			main: []corev1.ContainerStatus{{State: waiting, RestartCount: 2}}, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Status: corev1.PodStatus{InitContainerStatuses: tc.init, ContainerStatuses: tc.main}}
			is.Equal(t, hasStarted(p), tc.want)
		})
	}
}

// TestSurgePodWaitsForItsVolume has a claim that appears only after the surge has started, or it
// would have been declined.
func TestSurgePodWaitsForItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volume = "pv-1"
		evacuations, host := scene(newBudget(), attachment(volume, "node-7", true, ""))
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		must.Get(w.host.CoreV1().PersistentVolumeClaims(testNamespace).Create(
			t.Context(),
			&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				},
			},
			metav1.CreateOptions{},
		))(w)
		w.create(newTestPod("web-1", on("good"), fresh, unready, func(p *pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}))
		w.reported("web-0", false, "surge pod web-1 on node good waits for volume data: still attached to node-7.")
	})
}
