// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
)

const (
	// forecastWorkers is the maximum number of previews that are computed at the same time.
	forecastWorkers = 1
	// forecastNamed is how many blockers an event names.
	forecastNamed = 3
)

// forecasts emits an event about the blockers of a drain when its first wave starts. Admission
// lists no pods, so a user who starts a drain with plain kubectl gets no other warning. forecasts
// reads the preview outside of the syncs, so that no sync waits for it.
type forecasts struct {
	c     *Controller
	queue *loop.Queue[string]
}

func newForecasts(c *Controller, config Config) *forecasts {
	return &forecasts{
		c: c,
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name + "-forecasts", Backoff: time.Second, Clock: config.Clock, Liveness: config.Liveness, Busy: Name + " forecast of",
			LogAs: func(name string) (string, any) { return "nodeMaintenance", name },
		}),
	}
}

// reconcile reads the preview of a maintenance and emits an event if it has blockers.
func (f *forecasts) reconcile(ctx context.Context, name string) error {
	nm, exists := f.c.latest.Get(name)
	if !exists || !v1alpha1.IsDraining(nm) {
		return nil
	}
	preview, err := f.c.maintenance.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("preview the drain: %w", err)
	}
	text := describeBlockers(preview)
	if text == "" {
		return nil
	}
	klog.FromContext(ctx).V(2).Info("The preview of a drain has blockers", "blockers", len(preview.Blockers))
	f.c.maintenanceEvent(nm, corev1.EventTypeWarning, EventDrainForecast, actionDrain, "Blockers of the drain: %s", text)
	return nil
}

// describeBlockers returns the worst blockers of a preview as text, "" if there are none.
func describeBlockers(preview *v1alpha1.NodeMaintenancePreview) string {
	var named []string
	for i := range preview.Blockers {
		if len(named) == forecastNamed {
			break
		}
		named = append(named, describeBlocker(&preview.Blockers[i]))
	}
	text := strings.Join(named, "; ")
	if more := len(preview.Blockers) - len(named) + int(preview.BlockersOmitted); more > 0 {
		text += fmt.Sprintf("; and %d more, see the preview", more)
	}
	return text
}

func describeBlocker(b *v1alpha1.PreviewBlocker) string {
	about := ""
	switch {
	case len(b.Budgets) > 0:
		about = " under budget " + b.Budgets[0].Namespace + "/" + b.Budgets[0].Name
	case len(b.Pods) > 0:
		about = ", such as " + b.Pods[0].Namespace + "/" + b.Pods[0].Name
	}
	return fmt.Sprintf("%s%s: %s (%s)", wording.Count(int(b.PodCount), "pod"), about, b.Reason, b.Effect)
}
