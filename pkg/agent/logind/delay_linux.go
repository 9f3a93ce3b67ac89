// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/files"
)

const (
	// DropInName is the name of the agent's configuration file for logind. It must sort after the
	// files of other programs, such as unattended-upgrades-logind-maxdelay.conf.
	DropInName = "zz-haulout-node-agent.conf"

	// reloadTimeout limits how long logind may take to apply a new configuration.
	reloadTimeout = 3 * time.Second
	reloadPoll    = 50 * time.Millisecond
)

// dropInDirs are the possible directories of the agent's configuration file. If /etc is read-only,
// the file is written to /run, for this boot.
var dropInDirs = []string{"/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d"}

// reloadKey identifies a logind process and a configuration; the agent makes logind reload at most
// once for each pair.
type reloadKey struct {
	identity, content string
	winner            setting
}

// setDelay stores logind's maximum delay. The delay of a pending shutdown is fixed when the
// shutdown begins, so meanwhile setDelay keeps the lowest value that logind may have used.
func (m *Manager) setDelay(usec uint64, preparing bool) {
	delay := m.cfg.Delay
	if usec != infinity {
		delay = systemd.Duration(usec)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state.Delay == 0 || !preparing && !m.state.ShuttingDown:
		m.state.Delay = delay
	case !m.state.ShuttingDown:
		m.state.Delay = min(m.state.Delay, delay)
	}
}

// ensureDelay raises logind's maximum delay to the configured one, and returns the resulting
// maximum delay.
func (m *Manager) ensureDelay(ctx context.Context, c *client, current uint64) (uint64, error) {
	content := dropIn(m.cfg.Delay)
	existing := m.existingDropIn()
	lacking := func(usec uint64) bool { return usec == infinity || systemd.Duration(usec) < seconds(m.cfg.Delay) }
	// Replace our own older file as well, since the configured delay may have become lower. Keep
	// higher values of other programs.
	stale := existing != "" && existing != content
	var failed error
	if lacking(current) || stale {
		if existing != content {
			failed = m.writeDropIn(content)
		}
		winner, err := effectiveSetting("")
		if err != nil && failed == nil {
			failed = err
		}
		key := reloadKey{identity: c.identity, content: content, winner: winner}
		if m.reloaded != key {
			if current, err = m.reload(ctx, c, current); err != nil {
				failed = err
			} else {
				m.reloaded = key
			}
			klog.FromContext(ctx).Info("Reloaded logind", "wanted", m.cfg.Delay, "delay", formatUSec(current))
		}
	}
	text := ""
	if lacking(current) {
		text = m.delayProblem(current, failed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems.delay = text
	return current, ctx.Err()
}

// reload makes logind read its configuration, and waits until its delay has changed or the timeout
// has passed.
func (m *Manager) reload(ctx context.Context, c *client, before uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout+c.timeout)
	defer cancel()
	if err := systemd.NewClient(c.conn).KillUnit(ctx, unit, syscall.SIGHUP); err != nil {
		return before, fmt.Errorf("reload logind: %w", err)
	}
	for end := time.Now().Add(reloadTimeout); ; {
		now, err := c.delay(ctx)
		if err != nil {
			return before, err
		}
		if now != before || time.Now().After(end) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return before, ctx.Err()
		case <-time.After(reloadPoll):
		}
	}
}

// delayProblem returns a sentence that explains why logind allows less than the configured delay.
func (m *Manager) delayProblem(usec uint64, failed error) string {
	text := fmt.Sprintf("logind delays a shutdown by at most %s instead of %s", formatUSec(usec), m.cfg.Delay)
	if usec == infinity {
		text = "logind has InhibitDelayMaxSec=infinity, with which some versions do not delay a shutdown at all"
	}
	winner, err := effectiveSetting("")
	switch {
	case failed != nil:
		return fmt.Sprintf("%s: %v.", text, failed)
	case err == nil && winner.path != "" && filepath.Base(winner.path) != DropInName:
		return fmt.Sprintf("%s: InhibitDelayMaxSec=%s in %s has precedence over %s.", text, winner.value, winner.path, DropInName)
	default:
		return text + ": logind did not apply " + filepath.Join(dropInDirs[0], DropInName) + "."
	}
}

// existingDropIn returns the content of the agent's configuration file; "" if it does not exist.
func (m *Manager) existingDropIn() string {
	for _, dir := range dropInDirs {
		if content, err := os.ReadFile(filepath.Join(dir, DropInName)); err == nil {
			return string(content)
		}
	}
	return ""
}

func (m *Manager) writeDropIn(content string) error {
	var errs []error
	for _, dir := range dropInDirs {
		err := files.Replace(filepath.Join(dir, DropInName), strings.NewReader(content), 0o644)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveDropIn removes the agent's configuration file for logind. If the file existed, logind reads
// its configuration again.
func RemoveDropIn(ctx context.Context, client *systemd.Client, root string) error {
	removed := false
	for _, dir := range dropInDirs {
		switch err := os.Remove(filepath.Join(string(filepath.Separator), root, dir, DropInName)); {
		case err == nil:
			removed = true
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("remove the configuration of logind: %w", err)
		}
	}
	if !removed {
		return nil
	}
	return client.KillUnit(ctx, unit, syscall.SIGHUP)
}

// dropIn returns the content of the agent's configuration file. The value must be finite: systemd
// 252 does not delay a shutdown with infinity.
func dropIn(delay time.Duration) string {
	return fmt.Sprintf("# Written by haulout-node-agent, which delays shutdowns until the pods have left.\n"+
		"[Login]\nInhibitDelayMaxSec=%d\n", int64(seconds(delay)/time.Second))
}

func seconds(delay time.Duration) time.Duration {
	return (delay + time.Second - 1).Truncate(time.Second)
}

func formatUSec(usec uint64) string {
	if usec == infinity {
		return "infinity"
	}
	return systemd.Duration(usec).String()
}

// configDirs are the directories of logind's drop-ins. A file hides files with the same name in
// later directories.
var configDirs = []string{
	"/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/usr/local/lib/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d",
}

// mainFiles are the main configuration files of logind. logind reads the first one that exists,
// before all drop-ins.
var mainFiles = []string{
	"/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/local/lib/systemd/logind.conf", "/usr/lib/systemd/logind.conf",
}

// setting is a value of the maximum delay and the file that sets it.
type setting struct {
	path, value string
}

// effectiveSetting returns the effective setting of InhibitDelayMaxSec; zero if no file sets it.
func effectiveSetting(root string) (setting, error) {
	names := map[string]string{}
	for _, dir := range slices.Backward(configDirs) {
		entries, err := os.ReadDir(filepath.Join(string(filepath.Separator), root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return setting{}, fmt.Errorf("read the configuration of logind: %w", err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".conf") {
				names[entry.Name()] = filepath.Join(dir, entry.Name())
			}
		}
	}
	var paths []string
	for _, path := range mainFiles {
		if _, err := os.Stat(filepath.Join(string(filepath.Separator), root, path)); err == nil {
			paths = append(paths, path)
			break
		}
	}
	// logind reads the drop-ins of all directories in the order of their names, and uses the last
	// value.
	for _, name := range slices.Sorted(maps.Keys(names)) {
		paths = append(paths, names[name])
	}
	var found setting
	for _, path := range paths {
		value, err := readSetting(filepath.Join(string(filepath.Separator), root, path))
		if err != nil {
			return setting{}, fmt.Errorf("read the configuration of logind: %w", err)
		}
		if value != "" {
			found = setting{path: path, value: value}
		}
	}
	return found, nil
}

// readSetting returns the last value of InhibitDelayMaxSec in a file; "" if the file does not set
// it.
func readSetting(path string) (value string, err error) {
	content, err := os.ReadFile(path)
	section := ""
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
			section = line
		}
		key, assigned, ok := strings.Cut(line, "=")
		if ok && section == "[Login]" && strings.TrimSpace(key) == "InhibitDelayMaxSec" {
			value = cmp.Or(strings.TrimSpace(assigned), value)
		}
	}
	return value, err
}
