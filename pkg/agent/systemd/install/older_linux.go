// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/files"
)

// These files remain from an older version with localEngine: KubeletBus: a service that was the
// kubelet's D-Bus, and a drop-in that made the kubelet use it.
const (
	busUnit     = "haulout-node-agent-bus.service"
	dropInName  = "haulout-node-agent.conf"
	unitDir     = "/etc/systemd/system"
	busVariable = "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/haulout-node-agent/bus.sock"
)

// removeOlder removes the kubelet's bus, and restarts a kubelet that uses it. It reports whether it
// removed anything. While the agent delays a shutdown it does nothing, because the kubelet must not
// restart now; after the next boot, the installing pod calls it again.
func (o *Options) removeOlder(ctx context.Context, client *systemd.Client) (bool, error) {
	dropIns, err := filepath.Glob(o.path(filepath.Join(unitDir, "*.d", dropInName)))
	if err != nil {
		return false, err
	}
	bus, err := client.Unit(ctx, busUnit)
	if err != nil {
		return false, err
	}
	if len(dropIns) == 0 && !bus.Exists() && bus.Active != "active" {
		return false, nil
	}
	if pending, err := logind.Pending(ctx, o.Root); pending || err != nil {
		klog.FromContext(ctx).Info("The kubelet's bus of an older version stays until the next installation", "shutdownPending", pending, "err", err)
		return false, nil
	}
	// Remove the bus last: after an interruption, the next installation finds the kubelet through
	// the bus.
	kubelets := []string{o.KubeletUnit}
	for _, path := range dropIns {
		if unit := strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d"); !slices.Contains(kubelets, unit) {
			kubelets = append(kubelets, unit)
		}
		if err := removeDropIn(path); err != nil {
			return true, err
		}
	}
	if err := client.Reload(ctx); err != nil {
		return true, err
	}
	for _, unit := range kubelets {
		if err := o.leaveBus(ctx, client, unit); err != nil {
			return true, err
		}
	}
	if err := client.StopUnit(ctx, busUnit); err != nil {
		return true, err
	}
	if err := files.Remove(o.path(filepath.Join(unitDir, busUnit))); err != nil {
		return true, err
	}
	return true, client.Reload(ctx)
}

// leaveBus restarts a kubelet that was started with the bus.
func (o *Options) leaveBus(ctx context.Context, client *systemd.Client, name string) error {
	unit, err := client.Unit(ctx, name)
	if err != nil || unit.MainPID == 0 {
		return err
	}
	environment, err := os.ReadFile(o.path(fmt.Sprintf("/proc/%d/environ", unit.MainPID)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kubelet has ended
	}
	if err != nil {
		return fmt.Errorf("read the environment of %s: %w", name, err)
	}
	if !slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == busVariable }) {
		return nil
	}
	klog.FromContext(ctx).Info("Restarting the kubelet without the bus of an older version", "unit", name)
	return client.RestartUnit(ctx, name)
}
