/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/local/kubeletbus"
	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd"
)

const (
	// BusUnit is the service of the kubelet's bus.
	BusUnit = "haulout-node-agent-bus.service"
	// BusUnitPath is the path of its unit file.
	BusUnitPath = "/etc/systemd/system/" + BusUnit
	// DropInName is the name of the file with which the unit of the kubelet gets the bus.
	DropInName = "haulout-node-agent.conf"

	unitDir = "/etc/systemd/system"
	// busVariable is where the kubelet looks for the system bus.
	busVariable = "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + kubeletbus.DefaultDir + "/" + kubeletbus.BusSocket
)

// busFiles returns the unit of the bus, and the drop-in of the kubelet's.
func (o *Options) busFiles() []File {
	unit := fmt.Sprintf(`# Written by haulout-node-agent install, which overwrites all changes.
[Unit]
Description=Haulout node agent, bus of the kubelet
# The kubelet connects when it starts, and tries it once.
Before=%s
After=dbus.socket dbus.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%s kubelet-bus
Restart=always
RestartSec=200ms
RuntimeDirectory=%s
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
OOMScoreAdjust=-999
`, o.KubeletUnit, quote(o.Binary), filepath.Base(kubeletbus.DefaultDir))
	dropIn := fmt.Sprintf(`# Written by haulout-node-agent install for localEngine KubeletBus.
[Unit]
Wants=%s
After=%s

[Service]
Environment=%s
`, BusUnit, BusUnit, busVariable)
	return []File{
		{Path: BusUnitPath, Content: []byte(unit), Mode: 0o644},
		{Path: dropInPath(o.KubeletUnit), Content: []byte(dropIn), Mode: 0o644},
	}
}

func dropInPath(unit string) string {
	return filepath.Join(unitDir, unit+".d", DropInName)
}

// startBus starts the bus, and restarts a kubelet that runs without it. An update restarts the bus,
// to which the kubelet connects again; but not while a shutdown waits for both.
func (o *Options) startBus(ctx context.Context, client *systemd.Client) (bool, error) {
	changed := o.restartPending()
	if changed {
		if err := client.Reload(ctx); err != nil {
			return false, err
		}
	}
	bus, err := client.Unit(ctx, BusUnit)
	if err != nil {
		return false, err
	}
	if changed && bus.Active == "active" {
		pending, err := logind.Pending(ctx, o.Root)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot ask logind whether a shutdown is pending, the bus of the kubelet is not restarted")
		}
		changed = !pending && err == nil
	}
	started := changed || bus.Active != "active"
	if started {
		if err := client.RestartUnit(ctx, BusUnit); err != nil {
			return false, err
		}
	}
	restarted, err := o.restartKubelets(ctx, client, []string{o.KubeletUnit}, true)
	return started || restarted, err
}

// removeBus removes the bus, and restarts the kubelets that run with it. It reports whether there
// was anything to do.
func (o *Options) removeBus(ctx context.Context, client *systemd.Client) (bool, error) {
	dropIns, err := filepath.Glob(o.path(filepath.Join(unitDir, "*.d", DropInName)))
	if err != nil {
		return false, err
	}
	kubelets := []string{o.KubeletUnit}
	for _, path := range dropIns {
		unit := filepath.Base(filepath.Dir(path))
		if unit = unit[:len(unit)-len(".d")]; !slices.Contains(kubelets, unit) {
			kubelets = append(kubelets, unit)
		}
	}
	_, err = os.Lstat(o.path(BusUnitPath))
	removed := len(dropIns) > 0 || err == nil
	if removed {
		if err := removeAll(append(dropIns, o.path(BusUnitPath))...); err != nil {
			return false, err
		}
		for _, path := range dropIns {
			_ = os.Remove(filepath.Dir(path)) // unless it has other files
		}
		if err := client.Reload(ctx); err != nil {
			return true, err
		}
	}
	restarted, err := o.restartKubelets(ctx, client, kubelets, false)
	if err != nil {
		return removed || restarted, err
	}
	return removed || restarted, client.StopUnit(ctx, BusUnit)
}

// restartKubelets restarts the kubelets that run without the bus but should have it, or the other
// way round.
func (o *Options) restartKubelets(ctx context.Context, client *systemd.Client, units []string, withBus bool) (bool, error) {
	restarted := false
	for _, name := range units {
		unit, err := client.Unit(ctx, name)
		if err != nil {
			return restarted, err
		}
		if unit.MainPID == 0 {
			continue
		}
		environment, err := os.ReadFile(o.path(fmt.Sprintf("/proc/%d/environ", unit.MainPID)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return restarted, fmt.Errorf("read the environment of %s: %w", name, err)
		}
		has := slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == busVariable })
		if has == withBus {
			continue
		}
		klog.FromContext(ctx).Info("Restarting the kubelet with another bus", "unit", name, "agentBus", withBus)
		if err := client.RestartUnit(ctx, name); err != nil {
			return restarted, err
		}
		restarted = true
	}
	return restarted, nil
}
