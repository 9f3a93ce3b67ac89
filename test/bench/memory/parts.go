// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/usage"
)

const (
	// maxAtRest limits the resident memory at rest, in MB. maxMore limits how much more is resident
	// during and after a drain, and maxPreview during a preview.
	maxAtRest, maxMore, maxPreview = 600, 150, 100
	// maxFull limits the resident memory during the drain of all nodes, in MB: the memory limit of
	// the container.
	maxFull = 4096
	// maxPreviewTime limits the time of a preview, in seconds.
	maxPreviewTime = 2
	// previews is the number of previews, whose median counts.
	previews = 5
	// fullTime is the timeout of the drain of all nodes.
	fullTime = 8 * time.Hour
	// drainPoll is the interval at which a drain is read, whose status has an entry for each node.
	drainPoll = 5 * time.Second
)

// measure measures a part with a server in a new process.
func (c *cluster) measure(ctx context.Context, part string, r *report) error {
	m := &measurement{cluster: c, part: part, report: r}
	if err := c.restart(ctx, ""); err != nil {
		return err
	}
	if err := c.cancel(ctx); err != nil {
		return err
	}
	switch part {
	case partPreview:
		return m.preview(ctx)
	case partCancelled:
		return m.cancelled(ctx)
	case partFinished:
		return m.finished(ctx)
	}
	return m.full(ctx)
}

// measurement is the measurement of a part.
type measurement struct {
	*cluster
	part   string
	report *report
	// rest is the resident memory at rest, in bytes.
	rest int64
}

// step does something and records its time and the memory of the server.
func (m *measurement) step(ctx context.Context, name string, do func(context.Context) error) (step, error) {
	process, err := m.process()
	if err != nil {
		return step{}, err
	}
	if err := process.ResetPeak(); err != nil {
		return step{}, err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return step{}, fmt.Errorf("%s: %w", name, err)
	}
	s := step{Part: m.part, Name: name, Seconds: time.Since(began).Seconds()}
	memory, err := process.Memory()
	if err != nil {
		return step{}, err
	}
	s.Resident, s.File, s.Peak = memory.Resident, memory.File, memory.Peak
	if s.Heap, err = m.heap(ctx); err != nil {
		return step{}, err
	}
	m.report.Steps = append(m.report.Steps, s)
	fmt.Fprintf(m.out, "%-10s %-28s %7d MB %7d MB %7d MB %7d MB %8v\n", s.Part, s.Name, s.Resident/1e6, s.File/1e6, s.Peak/1e6, s.Heap/1e6,
		time.Since(began).Round(time.Second))
	return s, nil
}

// atRest records the memory after a pause.
func (m *measurement) atRest(ctx context.Context, name string) (step, error) {
	return m.step(ctx, name, func(ctx context.Context) error { return usage.Pause(ctx, m.settings.rest) })
}

// begin waits until the server knows the pods of groups of nodes and rests.
func (m *measurement) begin(ctx context.Context, groups ...string) error {
	if _, err := m.step(ctx, "all pods known", func(ctx context.Context) error { return m.know(ctx, groups...) }); err != nil {
		return err
	}
	s, err := m.atRest(ctx, "at rest")
	m.rest = s.Resident
	m.goal("MB at rest", megabytes(s.Resident), maxAtRest)
	return err
}

func (m *measurement) goal(text string, value, bound float64) {
	m.report.Goals = append(m.report.Goals, goals.Goal{Text: m.part + ": " + text, Value: value, Bound: bound})
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

// preview previews the drain of all nodes: on the leader, and on a server without controllers,
// which has the same caches as a replica that does not lead.
func (m *measurement) preview(ctx context.Context) error {
	if err := m.begin(ctx, groupCancelled, groupFinished, groupOther); err != nil {
		return err
	}
	if err := m.previews(ctx, "on the leader"); err != nil {
		return err
	}
	if err := m.restart(ctx, "--controllers=false"); err != nil {
		return err
	}
	s, err := m.atRest(ctx, "another replica at rest")
	if err != nil {
		return err
	}
	m.rest = s.Resident
	return m.previews(ctx, "on another replica")
}

func (m *measurement) previews(ctx context.Context, where string) error {
	var times []float64
	s, err := m.step(ctx, fmt.Sprintf("%d previews %s", previews, where), func(ctx context.Context) error {
		for range previews {
			began := time.Now()
			preview, err := m.haulout.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, maintenance, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if int(preview.PodCount) != m.pods {
				return fmt.Errorf("the preview has %d pods, want %d", preview.PodCount, m.pods)
			}
			times = append(times, time.Since(began).Seconds())
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(times)
	m.goal("seconds of a preview "+where, times[len(times)/2], maxPreviewTime)
	m.goal("MB above rest during previews "+where, megabytes(s.Peak-m.rest), maxPreview)
	return nil
}

// cancelled drains nodes, whose pods stay, and cancels the drain.
func (m *measurement) cancelled(ctx context.Context) error {
	if err := m.begin(ctx, groupCancelled); err != nil {
		return err
	}
	draining, err := m.step(ctx, fmt.Sprintf("%d nodes draining", m.settings.drain), func(ctx context.Context) error {
		if err := m.setStage(ctx, v1alpha1.NodeMaintenanceStageDrain); err != nil {
			return err
		}
		return m.counted(ctx, m.podsOn(groupCancelled), func(n *v1alpha1.NodeMaintenanceNodeStatus) int { return int(n.PodsEvacuating) })
	})
	if err != nil {
		return err
	}
	m.goal("MB above rest while draining", megabytes(draining.Peak-m.rest), maxMore)
	if _, err := m.atRest(ctx, "still draining"); err != nil {
		return err
	}
	if _, err := m.step(ctx, "cancelled", m.cancel); err != nil {
		return err
	}
	after, err := m.atRest(ctx, "at rest after it")
	m.goal("MB above rest after it", megabytes(after.Resident-m.rest), maxMore)
	return err
}

// finished drains nodes, whose pods leave, and completes the maintenance.
func (m *measurement) finished(ctx context.Context) error {
	if err := m.begin(ctx, groupFinished); err != nil {
		return err
	}
	draining, err := m.step(ctx, fmt.Sprintf("%d nodes drained", m.settings.drain), func(ctx context.Context) error {
		return m.whilePodsEnd(ctx, func(ctx context.Context) error {
			if err := m.setStage(ctx, v1alpha1.NodeMaintenanceStageDrain); err != nil {
				return err
			}
			return m.drained(ctx)
		})
	})
	if err != nil {
		return err
	}
	m.goal("MB above rest while draining", megabytes(draining.Peak-m.rest), maxMore)
	if _, err := m.step(ctx, "completed", func(ctx context.Context) error {
		return m.setStage(ctx, v1alpha1.NodeMaintenanceStageComplete)
	}); err != nil {
		return err
	}
	after, err := m.atRest(ctx, "at rest after it")
	m.goal("MB above rest after it", megabytes(after.Resident-m.rest), maxMore)
	return err
}

// full drains all nodes.
func (m *measurement) full(ctx context.Context) error {
	drained, err := m.step(ctx, fmt.Sprintf("%d nodes drained", m.nodes), func(ctx context.Context) error {
		return m.whilePodsEnd(ctx, func(ctx context.Context) error {
			if err := m.create(ctx, v1alpha1.NodeMaintenanceStageDrain, groupCancelled, groupFinished, groupOther); err != nil {
				return err
			}
			return m.drained(ctx)
		})
	})
	if err != nil {
		return err
	}
	m.goal("MB while draining all nodes", megabytes(drained.Peak), maxFull)
	_, err = m.atRest(ctx, "at rest after it")
	return err
}

// drained waits until the maintenance has drained its nodes.
func (m *measurement) drained(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, drainPoll, fullTime, true, func(ctx context.Context) (bool, error) {
		nm, err := m.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, maintenance, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained), err
	})
}
