// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// reportResponders reports that the pod names eviction responders (KEP-4563), which Haulout does
// not ask: to the pod's owner with one event, and to the client with a warning.
func (p *Plugin) reportResponders(ctx context.Context, attrs admission.Attributes, pod *corev1.Pod) {
	unasked := protocol.UnaskedResponders(pod)
	if len(unasked) == 0 {
		return
	}
	names := strings.Join(unasked, ", ")
	warning.AddWarning(ctx, "", fmt.Sprintf("pod %s names eviction responders that Haulout does not ask: %s", pod.Name, names))
	if p.storesNew(attrs, pod) {
		p.recorder.Eventf(pod, nil, corev1.EventTypeWarning, EventRespondersNotAsked, actionResolve,
			"This pod names eviction responders that Haulout does not ask: %s. Name an evacuator in an annotation to be asked.", protocol.OneLine(names, protocol.MaxMessage/2))
	}
}
