// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/host/owners"
)

// builtInOf returns the built-in evacuator of a pod. An evacuator that a pod got by mistake
// declines; a missing one is never added, so that is not decided from what was read before.
func (p *Plugin) builtInOf(ctx context.Context, pod *corev1.Pod) (builtIn protocol.BuiltIn, err error) {
	for _, from := range []owners.Live{p.recentOwners, owners.NewLive(p.client)} {
		builtIn, err = protocol.BuiltInOf(ctx, pod, p.builtIn, from)
		if err != nil {
			return builtIn, apierrors.NewInternalError(err)
		}
		if builtIn.Class != "" || builtIn.OptedOut {
			break
		}
	}
	return builtIn, nil
}
