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

	"github.com/spf13/pflag"
)

// runner runs the agent as a service of systemd, which needs to know nothing of it.
type runner struct{}

func (*runner) addFlags(*pflag.FlagSet) {}

// start calls the function that calls run.
func (*runner) start(ctx context.Context, _ *Options, run func(context.Context) error) error {
	return run(ctx)
}

func (*runner) run(ctx context.Context, o *Options) error {
	return runService(ctx, o)
}
