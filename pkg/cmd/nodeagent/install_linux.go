// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd/install"
)

// platformServices installs and removes the systemd unit.
func platformServices(*Options) services {
	return services{
		root:      true,
		install:   installUnit,
		pending:   func(ctx context.Context) (bool, error) { return logind.Pending(ctx, "") },
		uninstall: func(ctx context.Context) error { return install.Uninstall(ctx, install.Options{}) },
	}
}

func installUnit(ctx context.Context, i *installation) (bool, error) {
	o := install.Options{
		Root: i.root, Binary: i.binary, Args: i.args, KubeletUnit: i.config.KubeletService, MaxDelay: i.config.MaxShutdownDelay.Duration,
	}
	if i.content != nil {
		o.Files = []install.File{{Path: i.path, Content: i.content, Mode: 0o644}}
	}
	return install.Install(ctx, o)
}
