"""Soft actor-critic for continuous actions, as in CleanRL: twin Q networks, a replay buffer, automatic entropy."""

import random

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class ReplayBuffer:
    def __init__(self, buffer_size, observation_space, action_space, device):
        self.observations = np.zeros((buffer_size, *observation_space.shape), dtype=np.float32)
        self.next_observations = np.zeros((buffer_size, *observation_space.shape), dtype=np.float32)
        self.actions = np.zeros((buffer_size, *action_space.shape), dtype=np.float32)
        self.rewards = np.zeros((buffer_size, 1), dtype=np.float32)
        self.dones = np.zeros((buffer_size, 1), dtype=np.float32)
        self.device, self.pos, self.full = device, 0, False

    def add(self, obs, next_obs, action, reward, done):
        self.observations[self.pos], self.next_observations[self.pos] = obs, next_obs
        self.actions[self.pos], self.rewards[self.pos], self.dones[self.pos] = action, reward, done
        self.pos += 1

    def sample(self, batch_size):
        chosen = np.random.randint(0, self.pos, size=batch_size)
        arrays = (self.observations, self.next_observations, self.actions, self.rewards, self.dones)
        return tuple(torch.as_tensor(array[chosen]).to(self.device) for array in arrays)


class SoftQNetwork(nn.Module):
    def __init__(self, env, width=512):
        super().__init__()
        inputs = np.array(env.observation_space.shape).prod() + np.prod(env.action_space.shape)
        self.fc1 = nn.Linear(inputs, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


LOG_STD_MAX, LOG_STD_MIN = 2, -5


class Actor(nn.Module):
    def __init__(self, env, width=512):
        super().__init__()
        self.fc1 = nn.Linear(np.array(env.observation_space.shape).prod(), width)
        self.fc2 = nn.Linear(width, width)
        self.fc_mean = nn.Linear(width, np.prod(env.action_space.shape))
        self.fc_logstd = nn.Linear(width, np.prod(env.action_space.shape))
        high, low = env.action_space.high, env.action_space.low
        self.register_buffer("action_scale", torch.tensor((high - low) / 2.0, dtype=torch.float32))
        self.register_buffer("action_bias", torch.tensor((high + low) / 2.0, dtype=torch.float32))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        mean = self.fc_mean(x)
        log_std = torch.tanh(self.fc_logstd(x))
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def get_action(self, x):
        mean, log_std = self(x)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale + self.action_bias
        log_prob = normal.log_prob(x_t)
        log_prob -= torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        return action, log_prob.sum(1, keepdim=True), torch.tanh(mean) * self.action_scale + self.action_bias


def main(total_timesteps=48, learning_starts=40, batch_size=2048):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env = gym.make("Pendulum-v1")
    actor = Actor(env).to(device)
    qf1, qf2 = SoftQNetwork(env).to(device), SoftQNetwork(env).to(device)
    qf1_target, qf2_target = SoftQNetwork(env).to(device), SoftQNetwork(env).to(device)
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
    actor_optimizer = optim.Adam(list(actor.parameters()), lr=3e-4)
    target_entropy = -torch.prod(torch.Tensor(env.action_space.shape).to(device)).item()
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    alpha = log_alpha.exp().item()
    a_optimizer = optim.Adam([log_alpha], lr=1e-3)
    rb = ReplayBuffer(10000, env.observation_space, env.action_space, device)
    gamma, tau, policy_frequency = 0.99, 0.005, 2

    obs, _ = env.reset(seed=1)
    for global_step in range(total_timesteps):
        if global_step < learning_starts:
            action = env.action_space.sample()
        else:
            action, _, _ = actor.get_action(torch.Tensor(obs[None]).to(device))
            action = action.detach().cpu().numpy()[0]
        next_obs, reward, termination, truncation, _ = env.step(action)
        rb.add(obs, next_obs, action, reward, termination)
        obs = next_obs if not (termination or truncation) else env.reset()[0]
        if global_step <= learning_starts:
            continue
        b_obs, b_next_obs, b_actions, b_rewards, b_dones = rb.sample(batch_size)
        with torch.no_grad():
            next_state_actions, next_state_log_pi, _ = actor.get_action(b_next_obs)
            qf1_next_target = qf1_target(b_next_obs, next_state_actions)
            qf2_next_target = qf2_target(b_next_obs, next_state_actions)
            min_qf_next_target = torch.min(qf1_next_target, qf2_next_target) - alpha * next_state_log_pi
            next_q_value = b_rewards.flatten() + (1 - b_dones.flatten()) * gamma * min_qf_next_target.view(-1)
        qf1_a_values = qf1(b_obs, b_actions).view(-1)
        qf2_a_values = qf2(b_obs, b_actions).view(-1)
        qf_loss = F.mse_loss(qf1_a_values, next_q_value) + F.mse_loss(qf2_a_values, next_q_value)
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()
        if global_step % policy_frequency == 0:
            for _ in range(policy_frequency):
                pi, log_pi, _ = actor.get_action(b_obs)
                min_qf_pi = torch.min(qf1(b_obs, pi), qf2(b_obs, pi))
                actor_loss = ((alpha * log_pi) - min_qf_pi).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                with torch.no_grad():
                    _, log_pi, _ = actor.get_action(b_obs)
                alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
                a_optimizer.zero_grad()
                alpha_loss.backward()
                a_optimizer.step()
                alpha = log_alpha.exp().item()
        for network, target_network in ((qf1, qf1_target), (qf2, qf2_target)):
            for param, target_param in zip(network.parameters(), target_network.parameters()):
                target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
        if global_step % 4 == 0:
            print(f"step {global_step}: qf_loss {qf_loss.item() / 2.0:.3f} alpha {alpha:.4f}")
    env.close()


if __name__ == "__main__":
    main()
