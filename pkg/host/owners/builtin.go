// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package owners

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// BuiltIn determines the built-in evacuators of pods. It reads the owners of the pods from the API.
type BuiltIn struct {
	on           sets.Set[string]
	recent, live Live
}

// NewBuiltIn returns a BuiltIn that reads from a cluster. on has the classes of the enabled
// evacuators.
func NewBuiltIn(host kubernetes.Interface, on sets.Set[string]) BuiltIn {
	return BuiltIn{on: on, recent: newRecent(host), live: NewLive(host)}
}

// Of returns the built-in evacuator of a pod. It does not rely on cached owners to find that a pod
// has none: a missing evacuator is never added later, but an evacuator that a pod got by mistake
// declines.
func (b BuiltIn) Of(ctx context.Context, pod *corev1.Pod) (builtIn protocol.BuiltIn, err error) {
	for _, from := range []Live{b.recent, b.live} {
		builtIn, err = protocol.BuiltInOf(ctx, pod, b.on, from)
		if err != nil || builtIn.Class != "" || builtIn.OptedOut {
			break
		}
	}
	return builtIn, err
}
