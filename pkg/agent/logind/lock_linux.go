// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// inhibitDir has the pipes of logind's locks, and next to each pipe a file that describes it.
const inhibitDir = "/run/systemd/inhibit"

// adopt takes over the lock of an earlier process: from systemd's store, or by the path of the
// lock's pipe.
func (m *Manager) adopt(ctx context.Context) {
	logger := klog.FromContext(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, file := range m.cfg.Stored {
		path, err := lockPath(file)
		if m.lock != nil || err != nil {
			if err != nil {
				logger.Error(err, "The shutdown lock in systemd's store is not usable")
			}
			file.Close()
			continue
		}
		m.lock, m.state.LockPath, m.stored = file, path, true
		logger.Info("Took over the shutdown lock from systemd's store", "path", path)
	}
	m.cfg.Stored = nil
	if m.lock != nil || m.cfg.Resume.LockPath == "" {
		return
	}
	file, err := openLock(m.cfg.Resume.LockPath)
	if err != nil {
		logger.Info("The shutdown lock of the last process no longer exists", "path", m.cfg.Resume.LockPath, "reason", err.Error())
		return
	}
	m.lock, m.state.LockPath = file, m.cfg.Resume.LockPath
	logger.Info("Took over the shutdown lock by its path", "path", m.state.LockPath)
	m.addToStore(ctx)
}

// openLock opens the pipe of a lock; the lock is held while the pipe is open.
func openLock(path string) (*os.File, error) {
	if filepath.Dir(path) != inhibitDir || filepath.Ext(path) != ".ref" {
		return nil, fmt.Errorf("lock path %q: must be %s/NUMBER.ref", path, inhibitDir)
	}
	// Check the owner: after a restart, logind assigns the numbers of the pipes again. If this
	// process held the lock of another program, every shutdown would be delayed.
	described, err := os.ReadFile(strings.TrimSuffix(path, ".ref"))
	if err != nil {
		return nil, err
	}
	if !strings.Contains("\n"+string(described), "\nWHO="+Who+"\n") {
		return nil, fmt.Errorf("lock %s belongs to another program", path)
	}
	// With O_NONBLOCK, the call fails with ENXIO if logind does not read the pipe; otherwise it
	// would block.
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := lockPath(file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// lockPath returns the path of the pipe of an open lock. It fails if logind has removed the pipe.
// It does not use the link in /proc/self/fd: the file was opened in logind's own mount namespace,
// and when that namespace ends, the link is /NUMBER.ref.
func lockPath(file *os.File) (string, error) {
	opened, err := file.Stat()
	if err != nil {
		return "", err
	}
	if opened.Mode().Type() != os.ModeNamedPipe {
		return "", fmt.Errorf("file %s is not a named pipe", file.Name())
	}
	paths, err := filepath.Glob(inhibitDir + "/*.ref")
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		if named, err := os.Stat(path); err == nil && os.SameFile(opened, named) {
			return path, nil
		}
	}
	return "", fmt.Errorf("logind has removed the pipe from %s", inhibitDir)
}

// ensureLock takes a lock if the agent has none or if logind does not list it. It keeps a held lock
// when a shutdown is cancelled, so that there is no moment without a lock.
func (m *Manager) ensureLock(ctx context.Context, c *client, preparing bool) error {
	if m.cfg.GiveUp {
		m.mu.Lock()
		defer m.mu.Unlock()
		if preparing || m.stopping {
			return nil
		}
		return m.closeLock(ctx)
	}
	inhibitors, err := c.inhibitors(ctx)
	if err != nil {
		return err
	}
	if !m.needsLock(ctx, inhibitors, preparing) {
		return nil
	}
	file, err := c.inhibit(ctx)
	if errors.Is(err, errInProgress) {
		m.lockProblem("A shutdown is pending, and logind refuses new locks: the shutdown does not wait for the agent.")
		return nil
	}
	if err != nil {
		m.lockProblem(fmt.Sprintf("The agent cannot take a shutdown lock: %v.", err))
		return err
	}
	m.setLock(ctx, file)
	return nil
}

// needsLock reports whether the agent must take a lock. It closes a lock that logind does not list.
func (m *Manager) needsLock(ctx context.Context, inhibitors []inhibitor, preparing bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems.kubelet = kubeletProblem(inhibitors)
	if m.lock != nil {
		_, err := lockPath(m.lock)
		if err == nil && !listed(inhibitors) {
			err = errors.New("logind does not list it")
		}
		if err == nil {
			m.problems.lock = ""
			return false
		}
		klog.FromContext(ctx).Error(err, "The shutdown lock is lost", "path", m.state.LockPath)
		m.lock.Close()
		m.lock = nil
	}
	return !m.stopping && !(preparing && m.released)
}

func (m *Manager) setLock(ctx context.Context, file *os.File) {
	path, err := lockPath(file)
	if err != nil {
		// Continue: only an agent that restarts after a crash needs the path.
		klog.FromContext(ctx).Error(err, "Cannot find the path of the shutdown lock")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		file.Close()
		return
	}
	m.lock, m.state.LockPath, m.problems.lock = file, path, ""
	klog.FromContext(ctx).Info("Took a shutdown lock", "path", path)
	m.addToStore(ctx)
}

// addToStore replaces the copy of the lock in systemd's store. The caller holds mu.
func (m *Manager) addToStore(ctx context.Context) {
	if m.cfg.Store == nil {
		return
	}
	// Remove stale copies first: after a restart, the agent would find them before the new copy.
	err := m.cfg.Store.Remove(StoreName)
	if err == nil {
		err = m.cfg.Store.Add(StoreName, m.lock)
		m.stored = true
	}
	m.problems.store = ""
	if err != nil {
		m.problems.store = fmt.Sprintf("The shutdown lock would not survive a restart of the agent: %v.", err)
		klog.FromContext(ctx).Error(err, "Cannot add the shutdown lock to systemd's store")
	}
}

func (m *Manager) lockProblem(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems.lock = text
}

func listed(inhibitors []inhibitor) bool {
	return slices.ContainsFunc(inhibitors, func(i inhibitor) bool {
		return i.Who == Who && i.Mode == modeDelay && i.concerns(whatShutdown)
	})
}

// kubeletProblem returns a sentence if the kubelet holds a lock; otherwise "".
func kubeletProblem(inhibitors []inhibitor) string {
	if !slices.ContainsFunc(inhibitors, func(i inhibitor) bool { return i.Who == "kubelet" && i.concerns(whatShutdown) }) {
		return ""
	}
	return "The kubelet holds its own shutdown lock and ends all pods as soon as a shutdown begins: " +
		"set shutdownGracePeriod and shutdownGracePeriodCriticalPods to 0s and remove " +
		"shutdownGracePeriodByPodPriority in the kubelet's configuration."
}
