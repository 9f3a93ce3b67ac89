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
