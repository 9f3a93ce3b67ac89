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

// inhibitDir is where logind has the pipes of its locks, and beside each a file that describes it.
const inhibitDir = "/run/systemd/inhibit"

// adopt takes over the lock of an earlier process: from systemd's store, or else by the path of
// its pipe.
func (m *Manager) adopt(ctx context.Context) {
	logger := klog.FromContext(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, file := range m.cfg.Stored {
		path, err := lockPath(file)
		if m.lock != nil || err != nil {
			if err != nil {
				logger.Error(err, "Stored shutdown lock is not usable")
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
		logger.Info("Shutdown lock of the last process is gone", "path", m.cfg.Resume.LockPath, "reason", err.Error())
		return
	}
	m.lock, m.state.LockPath = file, m.cfg.Resume.LockPath
	logger.Info("Took over the shutdown lock by its path", "path", m.state.LockPath)
	m.addToStore(ctx)
}

// openLock opens the pipe of a lock, and so holds the lock too.
func openLock(path string) (*os.File, error) {
	if filepath.Dir(path) != inhibitDir || filepath.Ext(path) != ".ref" {
		return nil, fmt.Errorf("path %q of the lock: must be %s/NUMBER.ref", path, inhibitDir)
	}
	// logind uses the numbers again after a restart. A lock of another program that we hold would
	// delay every shutdown.
	described, err := os.ReadFile(strings.TrimSuffix(path, ".ref"))
	if err != nil {
		return nil, err
	}
	if !strings.Contains("\n"+string(described), "\nWHO="+Who+"\n") {
		return nil, fmt.Errorf("lock %s belongs to another program", path)
	}
	// O_NONBLOCK makes it fail with ENXIO if logind does not read the pipe, instead of waiting.
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

// lockPath returns the path of the pipe that an open lock is. It fails if logind has removed it.
// The link in /proc/self/fd does not tell: the file was opened in logind's own mount namespace, and
// when that ends with its logind, the link is /NUMBER.ref.
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

// ensureLock takes a lock if there is none, or if logind does not know ours. A lock that is held
// is kept over a cancelled shutdown, so there is no moment without one.
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
		m.lockProblem("A shutdown is pending and logind gives no lock any more: it does not wait for the agent.")
		return nil
	}
	if err != nil {
		m.lockProblem(fmt.Sprintf("There is no shutdown lock: %v.", err))
		return err
	}
	m.setLock(ctx, file)
	return nil
}

// needsLock reports whether a lock must be taken, and drops a lock that logind does not know.
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

// setLock stores a new lock.
func (m *Manager) setLock(ctx context.Context, file *os.File) {
	path, err := lockPath(file)
	if err != nil {
		// Only what survives a crash needs the path.
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

// addToStore replaces the copy in systemd's store. The caller holds mu.
func (m *Manager) addToStore(ctx context.Context) {
	if m.cfg.Store == nil {
		return
	}
	// Copies of a lock that logind has lost would be the first that the next process finds.
	err := m.cfg.Store.Remove(StoreName)
	if err == nil {
		err = m.cfg.Store.Add(StoreName, m.lock)
		m.stored = true
	}
	m.problems.store = ""
	if err != nil {
		m.problems.store = fmt.Sprintf("The shutdown lock ends with the process: %v.", err)
		klog.FromContext(ctx).Error(err, "Cannot keep the shutdown lock in systemd's store")
	}
}

func (m *Manager) lockProblem(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems.lock = text
}

// listed reports whether logind's list of locks has the agent's.
func listed(inhibitors []inhibitor) bool {
	return slices.ContainsFunc(inhibitors, func(i inhibitor) bool {
		return i.Who == Who && i.Mode == modeDelay && i.delays(whatShutdown)
	})
}

// kubeletProblem returns a sentence about a lock of the kubelet's, or "".
func kubeletProblem(inhibitors []inhibitor) string {
	if !slices.ContainsFunc(inhibitors, func(i inhibitor) bool { return i.Who == "kubelet" && i.delays(whatShutdown) }) {
		return ""
	}
	return "The kubelet holds a shutdown lock of its own and ends all pods as soon as a shutdown begins: " +
		"set shutdownGracePeriod and shutdownGracePeriodCriticalPods to 0s and remove " +
		"shutdownGracePeriodByPodPriority in the kubelet's configuration."
}
