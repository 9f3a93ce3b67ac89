// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
	"haulout.dev/haulout/test/cluster/internal/state"
)

// read loads state and options without taking the lock.
func (c *Cluster) read() (found bool, err error) {
	c.state, found, err = state.Load(c.Layout.StateFile())
	if err != nil || !found {
		return found, err
	}
	c.options, err = options.Parse(c.state.Options)
	return true, err
}

// Down stops all processes and, unless keepData is set, removes the data.
func (c *Cluster) Down(ctx context.Context, keepData bool) error {
	if _, err := os.Stat(c.Layout.StateFile()); errors.Is(err, fs.ErrNotExist) {
		c.printf("No cluster in %s", c.Layout.Dir)
		return nil
	}
	unlock, found, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !found {
		c.printf("No cluster in %s", c.Layout.Dir)
		return nil
	}
	running := 0
	for _, record := range c.state.Processes {
		if record.Alive() {
			running++
		}
	}
	if err := c.stopAll(ctx, func(string) bool { return true }); err != nil {
		return fmt.Errorf("%w\nThe cluster in %s is not stopped", err, c.Layout.Dir)
	}
	if err := realnodes.RemoveCgroup(ctx, realnodes.CgroupRoot, c.cgroup()); err != nil {
		return fmt.Errorf("remove the cgroups of real nodes: %w", err)
	}
	if keepData {
		c.printf("Stopped %d processes; the next `up` uses the data in %s", running, c.Layout.Dir)
		return nil
	}
	if err := removeAll(append(c.Layout.Data(), c.Layout.Logs(), c.Layout.StateFile())); err != nil {
		return err
	}
	// Remove the lock file last, and while it is locked: a program that waits for the lock finds
	// that the file is removed and creates a new one.
	if err := os.Remove(c.Layout.LockFile()); err != nil {
		return err
	}
	c.printf("Stopped %d processes and removed the data of the cluster in %s", running, c.Layout.Dir)
	// Remove fails if the folder contains other files.
	_ = os.Remove(c.Layout.Dir)
	return nil
}
