// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// watchFolder calls changed after each change of the static pod folder, until the context ends. The
// Keeper lists the folder regularly as well, so a watch that fails only costs time.
func (k *Keeper) watchFolder(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		if err := watchOnce(ctx, k.folder.dir, changed); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Static pod folder is not watched, only listed", "path", k.folder.dir, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-k.clock.After(k.relist):
		}
	}
}

// watchOnce watches a folder until the watch ends.
func watchOnce(ctx context.Context, dir string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-watcher.Errors:
			if !ok {
				return nil
			}
			return err
		case event, ok := <-watcher.Events:
			switch {
			case !ok:
				return nil
			case event.Name == dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return errors.New("the folder was removed")
			case isIgnored(filepath.Base(event.Name)) || event.Op == fsnotify.Remove || event.Op == fsnotify.Rename:
				continue // nothing new
			}
			changed()
		}
	}
}
